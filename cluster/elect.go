// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/google/uuid"

	"keelson/client"
	"keelson/lib/run"
)

// elected makes a part of which only one copy works at a time: the others wait, ready to take over. A copy that loses its lease
// begins again to wait when patient, else it ends with client.ErrNotLeader. work is called once per term.
func elected(cl *client.Client, e client.Election, patient bool, log *slog.Logger, work func(context.Context) error) run.Func {
	return func(ctx context.Context, ready func()) error {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("name of this machine: %w", err)
		}
		e.Identity = host + "_" + uuid.NewString()
		ready()
		for {
			err := cl.Lead(ctx, e, func(ctx context.Context) error {
				log.Info("is the leader now", "lease", e.Name)
				return work(ctx)
			})
			switch {
			case ctx.Err() != nil:
				return nil //nolint:nilerr // being stopped is no failure
			case !patient || !errors.Is(err, client.ErrNotLeader):
				return err
			}
			log.Warn("is not the leader any more, waits for its turn", "lease", e.Name)
		}
	}
}
