// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Tables returns the names of the kernel's inet tables with a prefix and a suffix.
func Tables(netNS int, prefix, suffix string) ([]string, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(netNS))
	if err != nil {
		return nil, fmt.Errorf("open a socket to nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	var out []string
	for _, t := range tables {
		if strings.HasPrefix(t.Name, prefix) && strings.HasSuffix(t.Name, suffix) {
			out = append(out, t.Name)
		}
	}
	return out, nil
}

// Withdraw deletes the elements of t from the kernel's table of that name, which an earlier process may have written.
// Elements, sets and tables that do not exist are no error. It does not need a Writer, and one that runs sees damage.
func Withdraw(netNS int, t *Table) error {
	conn, err := nftables.New(nftables.WithNetNSFd(netNS))
	if err != nil {
		return fmt.Errorf("open a socket to nftables: %w", err)
	}
	table := &nftables.Table{Name: t.Name, Family: nftables.TableFamilyINet}
	for name, elements := range t.Elements {
		set := t.Sets[name]
		for key := range elements {
			err := conn.SetDeleteElements(set.kernel(table), set.elements(key, ""))
			if err == nil {
				err = conn.Flush() // one by one: what is missing fails a transaction
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("delete elements of nftables table %s: %w", t.Name, err)
			}
		}
	}
	return nil
}
