// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
)

// readDynamic reads the elements that packets have added to dynamic sets of the desired table, because replacing the
// table deletes them. It uses its own connection: the writer's may have a transaction in progress.
func (w *Writer) readDynamic() (map[string][]nftables.SetElement, error) {
	return linux.Dump(w.dumpDynamic) // each try uses a new socket, because an interrupted dump leaves messages in it
}

func (w *Writer) dumpDynamic() (map[string][]nftables.SetElement, error) {
	wanted := false
	for _, s := range w.want.Sets {
		wanted = wanted || s.dynamic()
	}
	if !wanted {
		return nil, nil
	}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(w.cfg.NetNS))
	if err != nil {
		return nil, fmt.Errorf("open a socket to nftables: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }() // it only reads
	sets, err := conn.GetSets(w.table())
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // there is no table
	}
	if err != nil {
		return nil, fmt.Errorf("list sets of nftables table %s: %w", w.cfg.Name, err)
	}
	out := map[string][]nftables.SetElement{}
	for _, have := range sets {
		want, ok := w.want.Sets[have.Name]
		if !ok || !want.dynamic() || !have.Dynamic {
			continue
		}
		els, err := conn.GetSetElements(want.kernel(w.table()))
		if err != nil {
			return out, fmt.Errorf("list nftables set %s: %w", have.Name, err)
		}
		out[have.Name] = want.liveElements(els)
	}
	return out, nil
}

// liveElements converts elements of a dynamic set, so that they can be added to s with their remaining time.
func (s Set) liveElements(els []nftables.SetElement) []nftables.SetElement {
	var out []nftables.SetElement
	want := s.width()
	if len(s.Key) == 1 {
		want = s.Key[0].info().bytes
	}
	for _, e := range els {
		left := min(e.Expires, s.Timeout)
		if len(e.Key) != want || left < time.Millisecond || s.Size > 0 && len(out) == int(s.Size) {
			continue
		}
		out = append(out, nftables.SetElement{Key: e.Key, Timeout: left})
	}
	return out
}

// stageDynamic adds the elements of readDynamic to the new table's sets.
func (w *Writer) stageDynamic(kept map[string][]nftables.SetElement, t *nftables.Table) error {
	for name, els := range kept {
		set := w.want.Sets[name].kernel(t)
		set.ID = 0
		for len(els) > 0 {
			n := min(len(els), chunkBytes/(elementOverhead+w.want.Sets[name].width()))
			if err := w.conn.SetAddElements(set, els[:n]); err != nil {
				return err
			}
			els = els[n:]
		}
	}
	return nil
}
