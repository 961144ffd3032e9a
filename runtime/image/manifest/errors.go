// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
)

// Errors of images and registries, for errors.Is.
var (
	ErrNotFound     = errors.New("not found")                // no such image here, or on the registry
	ErrUnauthorized = errors.New("unauthorized")             // the registry wants (other) credentials
	ErrUnavailable  = errors.New("registry unavailable")     // the registry cannot be reached or does not work
	ErrInvalid      = errors.New("invalid image")            // not an image that can run on this machine
	ErrReference    = errors.New("invalid reference format") // not an image name
)
