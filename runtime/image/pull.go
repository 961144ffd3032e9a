// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"keelson/runtime/image/manifest"
	"keelson/runtime/image/registry"
	"keelson/runtime/image/unpack"
)

// Request asks for one image.
type Request struct {
	Ref  string         // the image's name
	Auth *registry.Auth // nil: anonymous
	// Tenant is whose pull it is: the pod's namespace. Tenants share no transfer and do not wait for each other's.
	Tenant   string
	Progress Progress // may be nil
	// Warn is called with what the registry warns of; nil: the store logs it.
	Warn func(text string)
}

// Pull pulls the image that request names and returns it once it is on disk. Concurrent pulls of a tenant for the same
// name with the same credentials share one transfer, which is canceled when the last caller leaves. The built-in image
// is never fetched. Errors wrap ErrReference, ErrNotFound, ErrUnauthorized, ErrUnavailable or ErrInvalid where these
// apply. They never repeat what a registry's answer says.
func (s *Store) Pull(ctx context.Context, request Request) (Image, error) {
	imageName, err := manifest.ParseName(request.Ref)
	if err != nil {
		return Image{}, err
	}
	if request.Warn == nil {
		request.Warn = func(text string) { s.log.Info("registry warned", "image", request.Ref, "warning", text) }
	}
	if s.builtin.source.local(imageName) {
		if !s.builtin.source.named(request.Ref) {
			return Image{}, fmt.Errorf("pull %s: manifest unknown: %w: keelson has %s built in",
				imageName, manifest.ErrNotFound, strings.Join(s.builtin.source.Tags, ", "))
		}
		img, err := s.builtin.describe()
		if err != nil {
			return Image{}, fmt.Errorf("pull %s: %w", imageName, err)
		}
		return s.Ensure(ctx, *img)
	}
	key := fmt.Sprintf("%q %s", request.Tenant, imageName)
	if request.Auth != nil {
		key += fmt.Sprintf("|%q", *request.Auth)
	}
	f := s.flights.join(ctx, key, request.Progress, func(ctx context.Context, m *meter) (Image, error) {
		pull := s.pullHere
		if s.helpers != nil {
			pull = s.pullByHelper
		}
		img, err := pull(ctx, imageName, request, m)
		if err != nil {
			s.collector.tidyLater()
		}
		return img, err
	})
	select {
	case <-f.done:
		return f.img, f.err
	case <-ctx.Done():
		s.flights.leave(key, f)
		return Image{}, fmt.Errorf("pull %s: %w", imageName, context.Cause(ctx))
	}
}

// pullByHelper has a helper process pull an image.
func (s *Store) pullByHelper(ctx context.Context, n manifest.Name, r Request, m *meter) (Image, error) {
	leave, err := s.layers.downloads.Enter(ctx, r.Tenant)
	if err != nil {
		return Image{}, err
	}
	defer leave()
	id, err := s.helpers.pull(ctx, r, m)
	// Another of our helpers may be stopped while it holds a lock of the store: without it the pull goes on.
	if errors.Is(err, errLocked) && s.locks.processes.killHolders(s.path(busyLock), s.path(indexLock)) {
		id, err = s.helpers.pull(ctx, r, m)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("pull %s: %w", n, context.Cause(ctx))
	} else if errors.Is(err, ErrHelper) || errors.Is(err, ErrNoHelper) {
		err = fmt.Errorf("pull %s: %w", n, err)
	}
	if err != nil {
		return Image{}, err
	}
	// The helper has put the image on disk and into the catalog; only its id came back.
	img, ok := s.Get(id)
	if !ok {
		return Image{}, fmt.Errorf("pull %s: %w: it was removed right after the pull", n, manifest.ErrNotFound)
	}
	return img, nil
}

// Close ends the pulls and returns when they have removed what they did not finish and the helper processes have ended.
// Later pulls start new ones.
func (s *Store) Close() {
	s.flights.stop()
	s.collector.stop()
	if s.helpers != nil {
		s.helpers.stop()
	}
}

// pullHere pulls an image in this process. It tries the endpoints in order. The error of a mirror is returned only
// together with that of the registry.
func (s *Store) pullHere(ctx context.Context, n manifest.Name, request Request, m *meter) (Image, error) {
	var mirrorErr error
	for _, e := range s.registries.Endpoints(n) {
		img, err := s.pullFrom(ctx, e, n, request, m)
		if err == nil {
			return img, nil
		}
		if ctx.Err() != nil {
			return Image{}, fmt.Errorf("pull %s: %w", n, context.Cause(ctx))
		}
		if e.Mirror {
			mirrorErr = fmt.Errorf("mirror %s: %w", e.Host, err)
			s.log.Debug("pull from mirror failed", "image", n.String(), "mirror", e.Host, "error", err)
			continue
		}
		if mirrorErr != nil {
			err = fmt.Errorf("%w (%s)", err, mirrorErr.Error())
		}
		return Image{}, fmt.Errorf("pull %s: %w", n, err)
	}
	return Image{}, fmt.Errorf("pull %s: no registry to ask", n)
}

func (s *Store) pullFrom(ctx context.Context, e registry.Endpoint, n manifest.Name, request Request, m *meter) (Image, error) {
	plan, repo, err := s.registries.Find(ctx, e, n, s.arch, request.Auth, request.Warn)
	if err != nil {
		return Image{}, err
	}
	work, err := s.layers.begin(request.Tenant)
	if err != nil {
		return Image{}, err
	}
	defer work.end()
	err = work.fetchLayers(ctx, plan, m, func(ctx context.Context, l manifest.Layer) (unpack.Source, error) {
		return repo.Blob(ctx, l.Blob, l.Size, m.add)
	})
	if err != nil {
		return Image{}, err
	}
	imgs, err := s.catalog.name([]*manifest.Plan{plan}, false, s.layers)
	if err != nil {
		return Image{}, err
	}
	return imgs[0], nil
}
