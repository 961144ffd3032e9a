// SPDX-License-Identifier: Apache-2.0

// Package forward asks other servers what the cluster does not know, and remembers their answers for a while. serve
// calls it. It knows nothing of Kubernetes, listens nowhere, and asks no one when it is not asked itself, but for the
// one question per server by which it finds a loop.
//
// Invariants:
//  1. A question is in flight once: clients that ask it meanwhile wait for the same answer.
//  2. What is under way is bounded, in all and per client, and each question ends within askLimit whatever the servers
//     do: with it end its goroutine and its sockets.
//  3. An answer is taken only from the server's address and port, with the question's random id and the question
//     itself, and is kept only under that question.
package forward
