// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"keelson/lib/linux"
	"keelson/runtime/image/registry"
)

// ServeHelper is the main function of a helper process (see helpers): it serves requests of in, with replies to out,
// until in ends. It limits the memory of the process for good.
func ServeHelper(ctx context.Context, in io.Reader, out io.Writer) error {
	requests := json.NewDecoder(in)
	var setup helperSetup
	if err := requests.Decode(&setup); err != nil {
		return fmt.Errorf("image helper: it is started by `keelson up` and has no use by hand: %w", err)
	}
	if err := linux.LimitMemory(setup.Memory); err != nil {
		return err
	}
	s, err := Open(Config{
		Dir:           setup.Dir,
		Registries:    setup.Registries,
		MaxLayerBytes: setup.MaxLayerBytes,
		ReserveBytes:  setup.ReserveBytes,
		Downloads:     setup.Downloads,
		lockPatience:  setup.LockPatience,
	})
	if err != nil {
		return err
	}
	defer s.Close() // returns when the pulls have removed what they did not finish
	work := &helperWork{store: s, replies: json.NewEncoder(out), cancels: map[int64]context.CancelFunc{}}
	defer work.pulls.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work.reply(helperReply{Ready: true})
	for {
		var r helperRequest
		err := requests.Decode(&r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("image helper: read a request: %w", err)
		}
		if r.Cancel {
			work.cancel(r.ID)
			continue
		}
		work.begin(ctx, r)
	}
}

// helperWork is the work of a helper process.
type helperWork struct {
	store *Store
	pulls sync.WaitGroup

	mu      sync.Mutex
	replies *json.Encoder
	cancels map[int64]context.CancelFunc // of the pulls that run
}

func (w *helperWork) cancel(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cancel := w.cancels[id]; cancel != nil {
		cancel()
	}
}

// reply sends a reply. If that fails, the parent has ended, and so does this process.
func (w *helperWork) reply(r helperReply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.End {
		delete(w.cancels, r.ID)
	}
	_ = w.replies.Encode(r)
}

func (w *helperWork) begin(ctx context.Context, r helperRequest) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	w.cancels[r.ID] = cancel
	w.mu.Unlock()
	w.reply(helperReply{ID: r.ID, Taken: true})
	w.pulls.Go(func() {
		defer cancel()
		img, err := w.store.Pull(ctx, Request{
			Ref:      r.Ref,
			Auth:     r.Auth,
			Progress: func(done, total int64) { w.reply(helperReply{ID: r.ID, Done: done, Total: total}) },
			Warn:     func(text string) { w.reply(helperReply{ID: r.ID, Warning: text}) },
		})
		out := helperReply{ID: r.ID, End: true, Image: img.ID}
		if err != nil {
			out.Error = fmt.Sprintf("%.4000s", err)
			for name, kind := range helperKinds {
				if errors.Is(err, kind) {
					out.Kinds = append(out.Kinds, name)
				}
			}
			if registry.Unreachable(err) {
				out.Kinds = append(out.Kinds, "unreachable")
			}
		}
		w.reply(out)
	})
}
