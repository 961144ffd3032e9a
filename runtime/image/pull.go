// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// flight is a pull in progress, which several callers may share. It is canceled when the last caller leaves.
type flight struct {
	waiters int // guarded by Store.mu
	cancel  context.CancelFunc
	meter   *meter
	done    chan struct{}
	img     Image
	err     error
}

// Request asks for one image.
type Request struct {
	Ref  string // the image's name
	Auth *Auth  // nil: anonymous
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
	imageName, err := parseName(request.Ref)
	if err != nil {
		return Image{}, err
	}
	if s.cfg.Builtin.local(imageName) {
		if !s.cfg.Builtin.named(request.Ref) {
			return Image{}, fmt.Errorf("pull %s: manifest unknown: %w: keelson has %s built in",
				imageName, ErrNotFound, strings.Join(s.cfg.Builtin.Tags, ", "))
		}
		img, err := s.describe()
		if err != nil {
			return Image{}, fmt.Errorf("pull %s: %w", imageName, err)
		}
		return s.Ensure(ctx, *img)
	}
	key := fmt.Sprintf("%q %s", request.Tenant, imageName)
	if request.Auth != nil {
		key += fmt.Sprintf("|%q", *request.Auth)
	}
	f := s.joinFlight(ctx, key, request.Progress, func(ctx context.Context, m *meter) (Image, error) {
		if s.helpers != nil {
			return s.pullByHelper(ctx, imageName, request, m)
		}
		return s.pull(ctx, imageName, request, m)
	})
	select {
	case <-f.done:
		return f.img, f.err
	case <-ctx.Done():
		s.leaveFlight(key, f)
		return Image{}, fmt.Errorf("pull %s: %w", imageName, context.Cause(ctx))
	}
}

// joinFlight joins the flight with this key, or starts one.
func (s *Store) joinFlight(ctx context.Context, key string, progress Progress, do func(
	context.Context, *meter,
) (Image, error),
) *flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.flights[key]; ok {
		f.waiters++
		f.meter.addCallback(progress)
		return f
	}
	fctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{
		waiters: 1,
		cancel:  cancel,
		meter:   &meter{},
		done:    make(chan struct{}),
	}
	f.meter.addCallback(progress)
	s.flights[key] = f
	s.running[f] = struct{}{}
	go func() { // ends with the transfer, which is canceled when the last waiter leaves
		defer cancel()
		f.img, f.err = do(fctx, f.meter)
		if f.err != nil {
			s.tidyLater()
		}
		s.mu.Lock()
		if s.flights[key] == f {
			delete(s.flights, key)
		}
		delete(s.running, f)
		s.mu.Unlock()
		close(f.done)
	}()
	return f
}

// leaveFlight removes one waiter. The last one cancels the flight, so that no other call can join it.
func (s *Store) leaveFlight(key string, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return
	}
	if s.flights[key] == f {
		delete(s.flights, key)
	}
	f.cancel()
}

// pullByHelper has a helper process pull an image.
func (s *Store) pullByHelper(ctx context.Context, n imageName, r Request, m *meter) (Image, error) {
	leave, err := s.downloads.Enter(ctx, r.Tenant)
	if err != nil {
		return Image{}, err
	}
	defer leave()
	id, err := s.helpers.pull(ctx, r, m)
	if errors.Is(err, errLocked) && s.helpers.killHolders(s.path("busy.lock"), s.path("index.lock")) {
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
	img, ok := s.Get(id)
	if !ok {
		return Image{}, fmt.Errorf("pull %s: %w: it was removed as soon as it was there", n, ErrNotFound)
	}
	return img, nil
}

// Close ends the pulls and returns when they have removed what they did not finish and the helper processes have ended.
// Later pulls start new ones.
func (s *Store) Close() {
	for {
		s.mu.Lock()
		if s.tidy != nil {
			s.tidy.Stop()
			s.tidy = nil
		}
		var last *flight
		for f := range s.running {
			f.cancel()
			last = f
		}
		s.mu.Unlock()
		if last == nil {
			break
		}
		<-last.done
	}
	if s.helpers != nil {
		s.helpers.stop()
	}
}

// pull tries the endpoints in order. The error of a mirror is returned only together with that of the registry.
func (s *Store) pull(ctx context.Context, n imageName, request Request, m *meter) (Image, error) {
	ends, err := s.endpoints(n)
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", n, err)
	}
	var mirrorErr error
	for _, e := range ends {
		img, err := s.pullFrom(ctx, e, n, request, m)
		if err == nil {
			return img, nil
		}
		if ctx.Err() != nil {
			return Image{}, fmt.Errorf("pull %s: %w", n, context.Cause(ctx))
		}
		if e.mirror {
			mirrorErr = fmt.Errorf("mirror %s: %w", e.host, err)
			s.cfg.Log.Debug("pull from mirror failed", "image", n.String(), "mirror", e.host, "error", err)
			continue
		}
		if mirrorErr != nil {
			err = fmt.Errorf("%w (%s)", err, mirrorErr.Error())
		}
		return Image{}, fmt.Errorf("pull %s: %w", n, err)
	}
	return Image{}, fmt.Errorf("pull %s: no registry to ask", n)
}

func (s *Store) pullFrom(ctx context.Context, e endpoint, n imageName, request Request, m *meter) (Image, error) {
	ref, err := e.reference(n)
	if err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrReference, err)
	}
	auth := request.Auth
	if e.mirror && auth != nil && auth.ServerAddress == "" {
		auth = nil // a mirror must not get the credentials of the registry
	}
	login, err := auth.authenticator(e.host)
	if err != nil {
		return Image{}, err
	}
	repo, err := s.connect(ctx, e, ref.Context(), login)
	if err != nil {
		return Image{}, err
	}
	repo.warnings.report = request.Warn
	if request.Warn == nil {
		repo.warnings.report = func(text string) { logWarning(s.cfg.Log, n.String(), text) }
	}
	raw, mediaType, err := repo.document(ctx, "manifests", ref.Identifier())
	if err != nil {
		return Image{}, err
	}
	digest := digestOf(raw)
	doc, err := resolve(ctx, repo, raw, mediaType, s.arch)
	if err != nil {
		return Image{}, err
	}
	steps, err := s.plan(ctx, repo, doc)
	if err != nil {
		return Image{}, err
	}
	steps.tags = nonEmpty(n.tagged())
	steps.digests = []string{n.repo + "@" + digest}
	work, err := s.begin(request.Tenant)
	if err != nil {
		return Image{}, err
	}
	defer work.end()
	err = work.fetchLayers(ctx, steps, m, func(ctx context.Context, l Layer) (readVerifier, error) {
		return repo.blob(ctx, l.Blob, l.Size, m)
	})
	if err != nil {
		return Image{}, err
	}
	imgs, err := s.name([]*plan{steps})
	if err != nil {
		return Image{}, err
	}
	return imgs[0], nil
}

// plan is an image whose manifest and config are read, but whose layers are not.
type plan struct {
	id      string
	config  *config
	size    int64
	layers  []Layer
	tags    []string
	digests []string
	pinned  bool // it was imported: no registry may have it
}

// plan reads the config that a manifest names and checks that they match.
func (s *Store) plan(ctx context.Context, from documents, manifest *document) (*plan, error) {
	if !slices.Contains(configTypes, manifest.Config.MediaType) {
		return nil, errArtifact
	}
	if size := manifest.Config.Size; size > maxDocument {
		return nil, fmt.Errorf("%w: config of %d bytes, at most %d are allowed", ErrInvalid, size, maxDocument)
	}
	raw, err := from.config(ctx, manifest.Config.Digest)
	if err != nil {
		return nil, err
	}
	if err := manifest.Config.checkSize(raw); err != nil {
		return nil, err
	}
	arch := s.arch
	if manifest.chosen {
		arch = ""
	}
	c, err := parseConfig(raw, arch)
	if err != nil {
		return nil, err
	}
	if len(manifest.Layers) != len(c.RootFS.DiffIDs) {
		return nil, fmt.Errorf("%w: manifest has %d layers, config %d", ErrInvalid, len(manifest.Layers),
			len(c.RootFS.DiffIDs))
	}
	p := &plan{id: manifest.Config.Digest, config: c, size: int64(len(raw))}
	p.setLayers()
	for i, l := range manifest.Layers {
		if l.Size < 0 || l.Size > maxBlob || !isDigest(l.Digest) {
			return nil, fmt.Errorf("%w: layer of %d bytes, or without a sha256 digest", ErrInvalid, l.Size)
		}
		p.layers[i].Blob = l.Digest
		p.layers[i].Size = l.Size
		p.size += l.Size
	}
	return p, nil
}

func (p *plan) setLayers() {
	diffs := p.config.RootFS.DiffIDs
	p.layers = make([]Layer, len(diffs))
	for i, chain := range chainIDs(diffs) {
		p.layers[i] = Layer{ChainID: chain, DiffID: diffs[i]}
	}
}

// fetchLayers fetches the missing layers of steps in parallel; each is committed after the one below it. All of them
// stay until the work ends.
func (w *work) fetchLayers(ctx context.Context, steps *plan, m *meter, open func(
	context.Context, Layer,
) (readVerifier, error),
) error {
	have, found, err := w.need(steps.layers)
	if err != nil {
		return err
	}
	for i, layer := range steps.layers {
		if found[i] {
			have[i].Blob = layer.Blob
			have[i].Size = layer.Size
			steps.layers[i] = have[i]
			continue
		}
		m.total.Add(layer.Size)
	}
	m.report()
	group, gctx := errgroup.WithContext(ctx)
	chains := make([]string, 0, len(steps.layers))
	var ready chan struct{}
	for i, l := range steps.layers {
		below := slices.Clone(chains)
		chains = append(chains, l.ChainID)
		if found[i] {
			continue
		}
		mine := make(chan struct{})
		under := ready
		ready = mine
		group.Go(func() error {
			got, err := w.addLayer(gctx, l, below, under, func(ctx context.Context) (readVerifier, error) {
				return open(ctx, l)
			})
			if err != nil {
				return err
			}
			got.Blob = l.Blob
			got.Size = l.Size
			steps.layers[i] = got
			close(mine)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	m.done.Store(m.total.Load()) // also the layers that another pull has transferred meanwhile
	m.report()
	return nil
}

// name adds images to the index, all or none. A layer that is not there, which must not happen, is an error: the image
// would be here for good, and could not run.
func (s *Store) name(plans []*plan) ([]Image, error) {
	unlock, err := s.lock("busy.lock", unix.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	defer unlock()
	for _, p := range plans {
		for _, layer := range p.layers {
			_, found, err := s.layerAt(layer.ChainID)
			if err != nil {
				return nil, err
			}
			if !found {
				return nil, fmt.Errorf("layer %s: %w: it was removed before its image had a name; try again",
					layer.ChainID, ErrNotFound)
			}
		}
	}
	ix, err := s.index()
	if err != nil {
		return nil, err
	}
	out := make([]Image, len(plans))
	known := true
	for i, p := range plans {
		have, ok := ix.find(p.id)
		if known = known && ok && have.hasNames(p.image()); known {
			out[i] = *have
		}
	}
	if known { // nothing changes, so nothing is written
		return out, nil
	}
	err = s.update(func(ix *index) error {
		at := make([]*Image, len(plans))
		for i, p := range plans {
			at[i] = ix.put(p.image())
		}
		for i, img := range at { // after all names are added
			out[i] = *img
		}
		return nil
	})
	return out, err
}

func (p *plan) image() *Image {
	return &Image{
		ID:          p.id,
		RepoTags:    p.tags,
		RepoDigests: p.digests,
		Size:        p.size,
		Created:     p.config.Created,
		Config:      p.config.kept(),
		Layers:      p.layers,
		Pinned:      p.pinned,
	}
}

// hasNames reports whether i has all that o would add to it.
func (i *Image) hasNames(o *Image) bool {
	if i.Pinned && !o.Pinned {
		return false
	}
	for _, t := range o.RepoTags {
		if !slices.Contains(i.RepoTags, t) {
			return false
		}
	}
	for _, d := range o.RepoDigests {
		if !slices.Contains(i.RepoDigests, d) {
			return false
		}
	}
	return true
}

func nonEmpty(s ...string) []string {
	return slices.DeleteFunc(s, func(x string) bool { return x == "" })
}
