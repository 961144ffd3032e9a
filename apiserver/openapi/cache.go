// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"container/list"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// cacheBytes bounds the compressed bytes that are kept: those of some hundred large definitions, in both versions.
const cacheBytes = 16 << 20

// cache keeps compressed documents, those that were used last. It is safe for concurrent use.
type cache struct {
	mu      sync.Mutex
	bytes   int
	max     int
	entries map[string]*list.Element
	order   *list.List // of *cacheEntry; the front was used last
}

type cacheEntry struct {
	key    string
	packed []byte
}

func newCache(most int) *cache {
	return &cache{max: most, entries: map[string]*list.Element{}, order: list.New()}
}

// packed returns the gzip form of what write writes for key, which changes with the content.
func (c *cache) packed(key string, write func(io.Writer) error) ([]byte, error) {
	c.mu.Lock()
	if e := c.entries[key]; e != nil {
		c.order.MoveToFront(e)
		entry, _ := e.Value.(*cacheEntry)
		c.mu.Unlock()
		return entry.packed, nil
	}
	c.mu.Unlock()
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := write(zip); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	packed := bytes.Clone(out.Bytes()) // without the buffer's spare room
	c.keep(key, packed)
	return packed, nil
}

func (c *cache) keep(key string, packed []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(packed) > c.max/2 || c.entries[key] != nil {
		return
	}
	c.entries[key] = c.order.PushFront(&cacheEntry{key, packed})
	c.bytes += len(packed)
	for c.bytes > c.max {
		last := c.order.Back()
		entry, _ := last.Value.(*cacheEntry)
		c.order.Remove(last)
		delete(c.entries, entry.key)
		c.bytes -= len(entry.packed)
	}
}

// plain is packed for a piece, and returns the piece itself.
func (c *cache) plain(key string, p piece) ([]byte, error) {
	var made []byte
	packed, err := c.packed(key, func(w io.Writer) error {
		var err error
		if made, err = p.json(); err == nil {
			_, err = w.Write(made)
		}
		return err
	})
	if err != nil || made != nil {
		return made, err
	}
	return unpacked(packed)
}

func unpacked(packed []byte) ([]byte, error) {
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("read a kept OpenAPI document: %w", err)
	}
	return io.ReadAll(zip)
}
