// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"keelson/cluster/datadir"
	"keelson/pki"
)

// keepNodeName returns the name of the directory's node; the first start stores asked. When the machine was renamed,
// the node keeps its name. Another name by --node-name is an error.
func keepNodeName(dir datadir.Dir, asked string, log *slog.Logger) (string, error) {
	b, err := os.ReadFile(dir.Sub(datadir.NodeNameFile))
	kept := strings.TrimSpace(string(b))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && kept == "":
		if err := pki.WriteFile(dir.Sub(datadir.NodeNameFile), []byte(asked+"\n"), 0o600); err != nil {
			return "", fmt.Errorf("note the name of the node: %w", err)
		}
		return asked, nil
	case err != nil:
		return "", fmt.Errorf("read the name of the node: %w", err)
	case kept == asked:
		return kept, nil
	case asked == defaultNodeName():
		log.Warn("the node keeps the name of its first start, though the machine has another name now", "node", kept,
			"machine", asked, "file", dir.Sub(datadir.NodeNameFile))
		return kept, nil
	}
	return "", fmt.Errorf("the node of %s is named %s: leave out --node-name, or rename it as docs/nodes.md says",
		dir, kept)
}
