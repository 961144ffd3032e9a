// SPDX-License-Identifier: Apache-2.0

// Package encryption encrypts the values of chosen resources in the store: it wraps a store.Store, encrypts writes and
// decrypts reads, as an EncryptionConfiguration says, in Kubernetes' format ("k8s:enc:secretbox:v1:key:..."). cluster
// wraps the store if there is such a file. It knows nothing of objects.
//
// Invariants:
//  1. A readable value was encrypted by a provider of the file for its resource, or is plain if "identity" is among
//     them.
//  2. What is written is encrypted by the first provider's first key. A value of another key is KV.Stale: a write of
//     the same object stores it again, so that keys can be rotated.
//  3. Keys never reach a log or an error.
package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/store"
)

// Store is a store.Store with encrypted values.
type Store struct {
	store.Store
	config atomic.Pointer[Config]
	// resourceOf returns the resource of a key.
	resourceOf func(key string) schema.GroupResource
}

// New wraps s. resourceOf returns the resource of a key.
func New(s store.Store, cfg *Config, resourceOf func(key string) schema.GroupResource) *Store {
	e := &Store{Store: s, resourceOf: resourceOf}
	e.config.Store(cfg)
	return e
}

// Apply switches to another configuration; if it is invalid, nothing changes.
func (s *Store) Apply(b []byte) error {
	cfg, err := Parse(b)
	if err == nil {
		s.config.Store(cfg)
	}
	return err
}

// prefix is the prefix of every encrypted value.
const prefix = "k8s:enc:"

var errNoProvider = errors.New("no matching prefix found")

// encrypt encrypts value for key.
func (s *Store) encrypt(key string, value []byte) ([]byte, error) {
	list := s.config.Load().providers(s.resourceOf(key))
	if len(list) == 0 {
		return value, nil
	}
	out, err := list[0].seal(key, value)
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: %w", key, err)
	}
	return out, nil
}

// decrypt decrypts value; stale means that a write would use another key.
func (s *Store) decrypt(key string, value []byte) (plain []byte, stale bool, err error) {
	if value == nil {
		return nil, false, nil
	}
	list := s.config.Load().providers(s.resourceOf(key))
	if len(list) == 0 {
		if bytes.HasPrefix(value, []byte(prefix)) {
			return nil, false, fmt.Errorf("decrypt %s: %w", key, errIdentity)
		}
		return value, false, nil
	}
	var wrong []string
	for i, p := range list {
		if !p.matches(value) {
			continue
		}
		plain, first, err := p.open(key, value)
		if err == nil {
			return plain, i > 0 || !first, nil
		}
		wrong = append(wrong, err.Error())
	}
	if len(wrong) > 0 {
		return nil, false, fmt.Errorf("decrypt %s: %s", key, strings.Join(wrong, "; "))
	}
	return nil, false, fmt.Errorf("decrypt %s: %w", key, errNoProvider)
}

func (s *Store) decryptKV(kv store.KV) (store.KV, error) {
	value, stale, err := s.decrypt(kv.Key, kv.Value)
	kv.Value = value
	kv.Stale = stale
	return kv, err
}

// Get implements store.Reader.
func (s *Store) Get(ctx context.Context, key string, rev int64) (store.KV, int64, error) {
	kv, at, err := s.Store.Get(ctx, key, rev)
	if err != nil {
		return kv, at, err
	}
	kv, err = s.decryptKV(kv)
	return kv, at, err
}

// List implements store.Reader. A value that cannot be decrypted is returned as stored: its decoder reports the error,
// and the other values stay readable.
func (s *Store) List(ctx context.Context, r store.Range) (store.Page, error) {
	page, err := s.Store.List(ctx, r)
	if err != nil {
		return page, err
	}
	items := make([]store.KV, len(page.Items))
	for i, kv := range page.Items {
		if items[i], err = s.decryptKV(kv); err != nil {
			items[i] = kv
		}
	}
	page.Items = items
	return page, nil
}

// Create implements store.Writer.
func (s *Store) Create(ctx context.Context, key string, value []byte) (store.Written, error) {
	sealed, err := s.encrypt(key, value)
	if err != nil {
		return store.Written{}, err
	}
	return s.Store.Create(ctx, key, sealed)
}

// Update implements store.Writer.
func (s *Store) Update(ctx context.Context, key string, value []byte, expected int64) (store.Written, error) {
	sealed, err := s.encrypt(key, value)
	if err != nil {
		return store.Written{}, err
	}
	w, err := s.Store.Update(ctx, key, sealed, expected)
	return w, s.conflict(err)
}

// Delete implements store.Writer.
func (s *Store) Delete(ctx context.Context, key string, expected int64) (store.KV, store.Written, error) {
	kv, w, err := s.Store.Delete(ctx, key, expected)
	if err != nil {
		return kv, w, s.conflict(err)
	}
	if plain, failed := s.decryptKV(kv); failed == nil {
		kv = plain
	}
	return kv, w, nil
}

// conflict decrypts the value in a conflict error.
func (s *Store) conflict(err error) error {
	var c *store.ConflictError
	if !errors.As(err, &c) {
		return err
	}
	current, failed := s.decryptKV(c.Current)
	if failed != nil {
		return failed
	}
	return &store.ConflictError{Expected: c.Expected, Current: current}
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	w, err := s.Store.Watch(ctx, prefix, from)
	if err != nil {
		return nil, err
	}
	out := &watcher{Watcher: w, events: make(chan []store.Event), stopped: make(chan struct{})}
	go func() { // ends with the inner watch, which Stop and ctx end
		defer close(out.events)
		for batch := range w.Events() {
			select {
			case out.events <- s.decryptEvents(batch):
			case <-out.stopped:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (s *Store) decryptEvents(batch []store.Event) []store.Event {
	out := make([]store.Event, len(batch))
	for i, ev := range batch {
		out[i] = ev
		if kv, err := s.decryptKV(ev.KV); err == nil { // else its decoder reports the error, as in List
			out[i].KV = kv
		}
		if before, _, err := s.decrypt(ev.KV.Key, ev.Prev); err == nil {
			out[i].Prev = before
		}
	}
	return out
}

type watcher struct {
	store.Watcher
	events  chan []store.Event
	stopped chan struct{}
	once    sync.Once
}

func (w *watcher) Events() <-chan []store.Event { return w.events }

func (w *watcher) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.Watcher.Stop()
}
