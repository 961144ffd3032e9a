// SPDX-License-Identifier: Apache-2.0

// Package unmodified holds other people's clients against the server: programs
// that know nothing of Keelson, as processes of their own, on a cluster inside the
// test. The programs come from the module in test/clients. No test here needs
// root or touches the kernel.
package unmodified
