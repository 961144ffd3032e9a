// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
)

// Limits of one transaction.
const (
	batchBytes  = 24 << 20 // approximate size of the elements of one transaction, some 200,000
	socketBytes = 64 << 20 // socket buffer: a transaction is sent as one message
)

// Config configures a Writer.
type Config struct {
	Name string
	// NetNS is the descriptor of a network namespace; 0: the process's.
	NetNS int
	Log   *slog.Logger
}

// Writer writes one table to the kernel. Its methods are safe for concurrent use.
type Writer struct {
	cfg Config

	mu    sync.Mutex
	conn  *nftables.Conn
	pid   uint32        // conn's netlink port id, which notifications of its changes have
	watch *netlink.Conn // nil unless Watch runs
	want  *Table
	sure  bool // the kernel has want; false: unknown
	bound int
}

// Open returns a Writer. It changes nothing in the kernel.
func Open(cfg Config) (*Writer, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w := &Writer{cfg: cfg, bound: batchBytes}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w, w.dialLocked()
}

// Close closes the socket. The table stays in the kernel.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hangUpLocked()
}

func (w *Writer) dialLocked() error {
	if w.conn != nil {
		return nil
	}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(w.cfg.NetNS),
		nftables.WithSockOptions(func(c *netlink.Conn) error {
			var err error
			w.pid, err = address(c)
			return errors.Join(err, c.SetWriteBuffer(socketBytes), c.SetReadBuffer(socketBytes/4))
		}))
	if err != nil {
		return fmt.Errorf("open a socket to nftables: %w", err)
	}
	w.conn = conn
	if w.watch != nil {
		return ignoreOwn(w.watch, w.pid)
	}
	return nil
}

// address returns the socket's netlink port id.
func address(c *netlink.Conn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var pid uint32
	var nameErr error
	err = raw.Control(func(fd uintptr) {
		sa, err := unix.Getsockname(int(fd))
		if nl, ok := sa.(*unix.SockaddrNetlink); ok {
			pid = nl.Pid
		}
		nameErr = err
	})
	return pid, errors.Join(err, nameErr)
}

func (w *Writer) hangUpLocked() error {
	if w.conn == nil {
		return nil
	}
	err := w.conn.CloseLasting()
	w.conn = nil
	return err
}

// Write writes t: the difference to the last table, or the whole table if the state of the kernel is unknown. The
// Writer owns t from now on.
func (w *Writer) Write(t *Table) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	have := w.want
	w.want = t
	if w.sure {
		if d, whole := Diff(have, t); !whole {
			return w.changeLocked(&d)
		}
	}
	return w.wholeLocked()
}

// Change applies d to the last table and writes it, or the whole table if the state of the kernel is unknown. After an
// error the desired table is changed nevertheless: Repair, or the next Write or Change, writes it.
func (w *Writer) Change(d *Delta) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.want == nil {
		return errors.New("a table cannot be changed before it is written")
	}
	effective := d.effective(w.want)
	d.Apply(w.want)
	if !w.sure {
		return w.wholeLocked()
	}
	return w.changeLocked(effective)
}

// Repair writes the whole table again.
func (w *Writer) Repair() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.want == nil {
		return nil
	}
	return w.wholeLocked()
}

// Look calls f with the last table. f must neither change nor keep it.
func (w *Writer) Look(f func(*Table)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.want != nil {
		f(w.want)
	}
}

// Delete deletes the table from the kernel. A missing table is not an error.
func (w *Writer) Delete() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sure = false
	w.want = nil
	if err := w.dialLocked(); err != nil {
		return err
	}
	t := w.table()
	w.conn.AddTable(t) // deleting a missing table is an error
	w.conn.DelTable(t)
	err := w.conn.Flush()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		err = nil // without nftables there is no table
	}
	if err != nil {
		return errors.Join(fmt.Errorf("delete nftables table %s: %w", w.cfg.Name, err), w.hangUpLocked())
	}
	return nil
}

func (w *Writer) table() *nftables.Table {
	return &nftables.Table{Name: w.cfg.Name, Family: nftables.TableFamilyINet}
}

// wholeLocked replaces the table in the kernel.
func (w *Writer) wholeLocked() error {
	if err := w.dialLocked(); err != nil {
		return err
	}
	d := Delta{Sets: w.want.Sets, Chains: w.want.Chains, Put: w.want.Elements}
	t := w.table()
	kept, err := w.readDynamic()
	if err != nil { // the rules are more important than the elements
		w.cfg.Log.Warn("dynamic elements of an nftables table are lost", "table", w.cfg.Name, "err", err)
	}
	w.conn.AddTable(t) // deleting a missing table is an error
	w.conn.DelTable(t)
	w.conn.AddTable(t)
	return w.sendLocked(&d, kept)
}

func (w *Writer) changeLocked(d *Delta) error {
	if d.Empty() {
		return nil
	}
	if err := w.dialLocked(); err != nil {
		return err
	}
	err := w.sendLocked(d, nil)
	// An object to delete is still in use, or replies were lost (ENOBUFS). Replacing the whole table depends on
	// neither.
	if linux.PassingNetlink(err) || errors.Is(err, unix.ENOBUFS) {
		w.cfg.Log.Debug("nftables table is replaced", "table", w.cfg.Name, "err", err)
		return w.wholeLocked()
	}
	return err
}

// sendLocked writes d and the dynamic elements in one transaction, together with messages that are staged already.
// Elements beyond the bound follow in further transactions.
func (w *Writer) sendLocked(d *Delta, kept map[string][]nftables.SetElement) error {
	w.sure = false
	err := w.stageLocked(d, kept)
	if err == nil {
		err = w.conn.Flush()
	}
	if err != nil {
		// The socket may have unread replies.
		return errors.Join(fmt.Errorf("write nftables table %s: %w", w.cfg.Name, err), w.hangUpLocked())
	}
	w.sure = true
	return nil
}

func (w *Writer) stageLocked(delta *Delta, kept map[string][]nftables.SetElement) error {
	table := w.table()
	for _, s := range delta.Sets {
		if err := w.conn.AddSet(s.kernel(table), nil); err != nil {
			return err
		}
	}
	for name, c := range delta.Chains {
		w.conn.AddChain(c.kernel(table))
		w.conn.FlushChain(&nftables.Chain{Name: name, Table: table}) // its old rules
	}
	for name, c := range delta.Chains {
		for _, r := range c.Rules {
			w.conn.AddRule(&nftables.Rule{
				Table: table,
				Chain: &nftables.Chain{Name: name, Table: table},
				Exprs: r.build(),
			})
		}
	}
	if err := w.stageDynamic(kept, table); err != nil {
		return err
	}
	if err := w.stageElements(delta, table); err != nil {
		return err
	}
	for name := range delta.DropChains { // their rules may refer to each other
		w.conn.FlushChain(&nftables.Chain{Name: name, Table: table})
	}
	for name := range delta.DropChains {
		w.conn.DelChain(&nftables.Chain{Name: name, Table: table})
	}
	for name := range delta.DropSets {
		w.conn.DelSet(&nftables.Set{Name: name, Table: table})
	}
	return nil
}
