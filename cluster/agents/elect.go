// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"errors"
	"log/slog"

	"github.com/google/uuid"

	"keelson/client"
	"keelson/lib/run"
)

// Elected returns a part that works only while this instance is the leader. An instance that loses its lease waits
// again if patient; else it ends with client.ErrNotLeader. work is called once per term. The lease's holder begins with
// node, the name of this machine's node.
func Elected(cl *client.Client, election client.Election, node string, patient bool, log *slog.Logger, work func(
	context.Context,
) error,
) run.Func {
	return func(ctx context.Context, ready func()) error {
		election.Identity = node + "_" + uuid.NewString()
		ready()
		for {
			err := cl.Lead(ctx, election, func(ctx context.Context) error {
				log.Info("became the leader", "lease", election.Name)
				return work(ctx)
			})
			switch {
			case ctx.Err() != nil:
				return nil //nolint:nilerr // a stop is no error
			case !patient || !errors.Is(err, client.ErrNotLeader):
				return err
			}
			log.Warn("lost the leadership, waits to become the leader again", "lease", election.Name)
		}
	}
}
