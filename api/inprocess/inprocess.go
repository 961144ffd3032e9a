// SPDX-License-Identifier: Apache-2.0

// Package inprocess lets a client in the server's process have the object that answers its request instead of the
// object's encoding. The client asks for it in the request's context, and the server may do it: where it answers
// otherwise (an error, a warning, another form), the answer is written as for any client.
package inprocess

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
)

// Answer is where the server leaves the object. It is for one request, whose client looks at it when the handler has
// returned.
type Answer struct {
	// Object is shared: who wants to change it copies it. nil: the answer was written.
	Object runtime.Object
}

type key struct{}

// Want asks for the object.
func Want(ctx context.Context, a *Answer) context.Context { return context.WithValue(ctx, key{}, a) }

// Wanted is where the object goes; nil: the client wants it written.
func Wanted(ctx context.Context) *Answer {
	a, _ := ctx.Value(key{}).(*Answer)
	return a
}
