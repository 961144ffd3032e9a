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

// Limits of one transaction. The kernel answers each message of a transaction, and a rule with the rule itself, before
// the first answer is read: they must fit in the socket's buffer for reading. The buffers' sizes are limits; they take
// memory only while they are in use.
const (
	// approximate size of the messages and answers of a part of a change: 6,000 rules or 200,000 elements
	batchBytes   = 16 << 20
	sendBytes    = 256 << 20 // buffer for writing: a transaction is sent as one message
	receiveBytes = 512 << 20 // buffer for reading: for a whole table, which is one transaction
	messageCost  = 1 << 10
	ruleCost     = 5 << 9
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
	// staged is the cost of the messages that are not sent yet. bound is batchBytes.
	staged, bound int
	receive       int // receiveBytes
	// sent is called after each part of a transaction; tests look at the kernel's table then. nil: not called.
	sent func()
}

// Open returns a Writer. It changes nothing in the kernel.
func Open(cfg Config) (*Writer, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w := &Writer{cfg: cfg, bound: batchBytes, receive: receiveBytes}
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
			return errors.Join(err, c.SetWriteBuffer(sendBytes), c.SetReadBuffer(w.receive))
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
	return w.sendLocked(func() error {
		w.conn.AddTable(t) // deleting a missing table is an error
		w.conn.DelTable(t)
		w.conn.AddTable(t)
		return w.stageWhole(&d, kept)
	})
}

func (w *Writer) changeLocked(d *Delta) error {
	if d.Empty() {
		return nil
	}
	if err := w.dialLocked(); err != nil {
		return err
	}
	err := w.sendLocked(func() error { return w.stageChange(d) })
	// An object to delete is still in use. Replacing the whole table does not depend on that.
	if linux.PassingNetlink(err) || errors.Is(err, unix.ENOBUFS) {
		w.cfg.Log.Debug("nftables table is replaced", "table", w.cfg.Name, "err", err)
		return w.wholeLocked()
	}
	return err
}

// sendLocked sends what stage stages, in one or several transactions.
func (w *Writer) sendLocked(stage func() error) error {
	w.sure = false
	w.staged = 0
	err := stage()
	if err == nil {
		err = w.flush()
	}
	if errors.Is(err, unix.ENOBUFS) && w.tookAll() {
		return nil
	}
	if err != nil {
		// The socket may have unread replies.
		return errors.Join(fmt.Errorf("write nftables table %s: %w", w.cfg.Name, err), w.hangUpLocked())
	}
	w.sure = true
	return nil
}

// tookAll reports whether the kernel has the desired table, after answers were lost: it may have made the transaction
// or not. It uses a new socket, because the old one may have unread answers.
func (w *Writer) tookAll() bool {
	if w.hangUpLocked() != nil {
		return false
	}
	w.sure = true
	w.sure = w.intactLocked()
	return w.sure
}

// flush sends what is staged as one transaction.
func (w *Writer) flush() error {
	w.staged = 0
	if err := w.conn.Flush(); err != nil {
		return err
	}
	if w.sent != nil {
		w.sent()
	}
	return nil
}

// part counts staged messages, and sends them if they are enough for a transaction. What follows may be in another one.
func (w *Writer) part(cost int) error {
	if w.staged += cost; w.staged < w.bound {
		return nil
	}
	return w.flush()
}
