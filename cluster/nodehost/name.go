// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"strings"

	"keelson/cluster/datadir"
	"keelson/pki"
)

var notInName = regexp.MustCompile(`[^a-z0-9.-]+`)

// DefaultName is the name of this machine's node unless another is given: its host name, as far as Kubernetes allows
// it.
func DefaultName() string {
	host, err := os.Hostname()
	if err != nil {
		return "node-1"
	}
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(host), "-"), "-.")
	if name == "" {
		return "node-1"
	}
	return name
}

// KeepName returns the name of the directory's node; the first start stores asked. When the machine was renamed,
// the node keeps its name. Another name by --node-name is an error.
func KeepName(dir datadir.Dir, asked string, log *slog.Logger) (string, error) {
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
	case asked == DefaultName():
		log.Warn("the node keeps the name of its first start, which is not the name of this machine", "node", kept,
			"machine", asked, "file", dir.Sub(datadir.NodeNameFile))
		return kept, nil
	}
	return "", fmt.Errorf("the node of %s is named %s: leave out --node-name, or rename it as docs/nodes.md says",
		dir, kept)
}
