// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"keelson/cluster/datadir"
	"keelson/cluster/version"
	"keelson/lib/words"
	"keelson/runtime"
	"keelson/runtime/image"
	"keelson/runtime/image/archive"
)

func imageCommand(std Stdio) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "image",
		Short: "Images on this machine: import from a file, list, remove; no registry needed",
		Example: "  docker save my-app:1 | keelson image import -\n" +
			"  keelson image ls",
	})
	dir := new(string)
	dataDirVar(cmd.PersistentFlags(), dir)
	open := func() (*image.Store, error) {
		d, err := datadir.Dir(*dir).Prepare()
		if err != nil {
			return nil, err
		}
		return runtime.OpenImages(d.Sub("runtime"), version.Release, slog.New(slog.DiscardHandler))
	}
	// Looking at images makes no data directory.
	existing := func() (*image.Store, error) {
		if _, err := os.Stat(datadir.Dir(*dir).Sub("runtime")); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("there are no images in %s: no cluster has run there, and none was imported", *dir)
		}
		return open()
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "import FILE",
			Short: "Import an OCI or docker archive (\"-\" reads standard input)",
			Args:  one("FILE"),
			Example: "  keelson image import my-app.tar                     # what docker save, podman save or " +
				"skopeo wrote\n" +
				"  docker save my-app:1 | keelson image import -",
			RunE: func(c *cobra.Command, args []string) error { return importImage(c, args[0], open, std) },
		},
		&cobra.Command{
			Use:     "ls",
			Aliases: []string{"list"},
			Short:   "List images",
			Args:    none,
			Example: "  keelson image ls",
			RunE: func(*cobra.Command, []string) error {
				s, err := existing()
				if err != nil {
					return err
				}
				return listImages(s.List(), std.screen())
			},
		},
		&cobra.Command{
			Use:               "rm REF",
			Short:             "Remove an image by name, digest or id",
			Args:              one("REF"),
			ValidArgsFunction: completeImages(dir, existing),
			Example:           "  keelson image rm my-app:1",
			RunE: func(c *cobra.Command, args []string) error {
				s, err := existing()
				if err != nil {
					return err
				}
				if _, ok := s.Get(args[0]); !ok {
					return fmt.Errorf("no image %q here (`keelson image ls` lists them)", args[0])
				}
				return s.Remove(c.Context(), args[0])
			},
		},
	)
	return cmd
}

func importImage(cmd *cobra.Command, file string, open func() (*image.Store, error), std Stdio) error {
	in := std.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if fi, err := f.Stat(); err == nil && fi.IsDir() {
			return fmt.Errorf("import %s: %w: it is a directory; %s", file, archive.ErrNotArchive, makeArchive)
		}
		in = f
	}
	s, err := open()
	if err != nil {
		return err
	}
	imgs, err := s.Import(cmd.Context(), in)
	if errors.Is(err, archive.ErrNotArchive) {
		return fmt.Errorf("import %s: %w; %s", file, err, makeArchive)
	}
	if err != nil {
		return fmt.Errorf("import %s: %w", file, err)
	}
	for _, img := range imgs {
		if _, err := fmt.Fprintf(std.screen(), "imported %s (%s)\n", cmp.Or(strings.Join(img.RepoTags, ", "), img.ID),
			words.Bytes(img.Size)); err != nil {
			return err
		}
		for _, tag := range img.RepoTags {
			if strings.HasSuffix(tag, ":latest") {
				_, _ = fmt.Fprintf(screenOf(std.Err), "pods pull %s again, as their imagePullPolicy is Always for "+
					":latest: say imagePullPolicy: IfNotPresent, or import another tag\n", tag)
			}
		}
	}
	return nil
}

// makeArchive says how to make what import reads.
const makeArchive = "make an archive with `docker save -o FILE IMAGE`, `podman save --format oci-archive -o FILE " +
	"IMAGE` or " +
	"`skopeo copy docker://IMAGE oci-archive:FILE:IMAGE`"

func listImages(imgs []image.Image, out *screen) error {
	if len(imgs) == 0 {
		_, err := fmt.Fprintln(out, "no images; `keelson image import FILE` brings one")
		return err
	}
	type row struct{ name, tag, id, size string }
	var rows []row
	for i := range imgs {
		id := strings.TrimPrefix(imgs[i].ID, "sha256:")
		id = id[:min(12, len(id))]
		size := words.Bytes(imgs[i].Size)
		for _, t := range imgs[i].RepoTags {
			at := strings.LastIndexByte(t, ':')
			rows = append(rows, row{t[:at], t[at+1:], id, size})
		}
		if len(imgs[i].RepoTags) == 0 {
			rows = append(rows, row{"<none>", "<none>", id, size})
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.tag, b.tag)) })
	cells := make([][]string, 0, len(rows))
	for _, r := range rows {
		cells = append(cells, []string{r.name, r.tag, r.id, r.size})
	}
	return printTable(out, []string{"IMAGE", "TAG", "IMAGE ID", "SIZE"}, cells)
}
