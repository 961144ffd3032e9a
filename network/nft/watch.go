// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// nfnlgrpNftables is the multicast group for changes of nftables (NFNLGRP_NFTABLES).
const nfnlgrpNftables = 7

// watchBytes is the limit of the buffer for notifications.
const watchBytes = 8 << 20

// Watch calls damaged whenever another program has changed the table, until ctx is done. It does not poll: the kernel
// sends notifications. damaged should limit the rate of Repair, because the other program may repeat its change.
func (w *Writer) Watch(ctx context.Context, damaged func()) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: w.cfg.NetNS})
	if err != nil {
		return fmt.Errorf("open a socket for changes of nftables: %w", err)
	}
	defer func() {
		w.mu.Lock()
		w.watch = nil
		w.mu.Unlock()
		_ = conn.Close()
	}()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	w.mu.Lock()
	w.watch = conn
	err = errors.Join(conn.SetReadBuffer(watchBytes), ignoreOwn(conn, w.pid), conn.JoinGroup(nfnlgrpNftables))
	w.mu.Unlock()
	if err != nil {
		return fmt.Errorf("listen to changes of nftables: %w", err)
	}
	for {
		msgs, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // notifications were lost
			if !w.Intact() {
				damaged()
			}
			continue
		case err != nil:
			return fmt.Errorf("listen to changes of nftables: %w", err)
		}
		if w.affected(msgs) {
			damaged()
		}
	}
}

// ignoreOwn filters the notifications of the writer's own changes: those of a large transaction would overflow the
// socket.
func ignoreOwn(c *netlink.Conn, pid uint32) error {
	prog, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 4}, // nlmsg_pid, which the filter reads as big-endian
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: toBig(pid), SkipFalse: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 1 << 30},
	})
	if err != nil {
		return err
	}
	return c.SetBPF(prog)
}

func toBig(n uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return binary.BigEndian.Uint32(b[:])
}

// affected reports whether one of the messages is a change of the table by another program.
func (w *Writer) affected(msgs []netlink.Message) bool {
	w.mu.Lock()
	pid := w.pid
	w.mu.Unlock()
	for _, m := range msgs {
		if m.Header.PID != pid && tableOf(m) == w.cfg.Name {
			return true
		}
	}
	return false
}

// tableOf returns the name of the changed inet table; "" for other families. In all messages it is the first attribute.
func tableOf(m netlink.Message) string {
	const family, genHeader, tableAttr = unix.NFPROTO_INET, 4, unix.NFTA_TABLE_NAME
	if len(m.Data) < genHeader || m.Data[0] != family || uint8(m.Header.Type) == unix.NFT_MSG_NEWGEN {
		return ""
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[genHeader:])
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == tableAttr {
			return ad.String()
		}
	}
	return ""
}

// Intact compares the kernel's table with the desired one: chains, their number of rules, and elements. Its cost
// depends on the size of the table.
func (w *Writer) Intact() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.intactLocked()
}

func (w *Writer) intactLocked() bool {
	if !w.sure || w.dialLocked() != nil {
		return false
	}
	table := w.table()
	chains, err := w.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return w.resetLocked()
	}
	found := 0
	for _, c := range chains {
		if c.Table == nil || c.Table.Name != w.cfg.Name {
			continue
		}
		rules, err := w.conn.GetRules(table, c)
		if err != nil {
			return w.resetLocked()
		}
		want, ok := w.want.Chains[c.Name]
		if !ok || len(rules) != len(want.Rules) {
			return false
		}
		found++
	}
	if found != len(w.want.Chains) {
		return false
	}
	for name, s := range w.want.Sets {
		if s.dynamic() {
			continue
		}
		els, err := w.conn.GetSetElements(s.kernel(table))
		if err != nil {
			return w.resetLocked()
		}
		if !s.holds(els, w.want.Elements[name]) {
			return false
		}
	}
	return true
}

// resetLocked closes a connection that may have unread replies, and returns false.
func (w *Writer) resetLocked() bool {
	_ = w.hangUpLocked()
	return false
}

// holds reports whether the kernel's elements have the desired keys.
func (s Set) holds(have []nftables.SetElement, want map[string]string) bool {
	n := 0
	for _, e := range have {
		if e.IntervalEnd {
			continue
		}
		n++
		if s.Interval {
			continue
		}
		key := make([]byte, s.width())
		copy(key, e.Key)
		if _, ok := want[string(key)]; !ok {
			return false
		}
	}
	return n == len(want)
}
