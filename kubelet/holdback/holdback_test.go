// SPDX-License-Identifier: Apache-2.0

package holdback

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func open(t *testing.T, dir string) *Keeper {
	t.Helper()
	k, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func pod(namespace, name string) Subject {
	return Subject{UID: "uid-of-" + namespace + "-" + name, Namespace: namespace, Name: name}
}

func files(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func ignore() {}

// died lets the process die n times while all subjects are under way.
func died(t *testing.T, dir string, n int, all ...Subject) *Keeper {
	t.Helper()
	k := open(t, dir)
	for range n {
		for _, s := range all {
			k.records[s.file()] = cmpOr(k.records[s.file()], &record{Subject: s})
			k.records[s.file()].Running = true
			k.write(k.records[s.file()])
		}
		k = open(t, dir)
	}
	return k
}

func cmpOr(a, b *record) *record {
	if a != nil {
		return a
	}
	return b
}

func wantHeld(t *testing.T, h *Hold, wait time.Duration, message string) {
	t.Helper()
	switch {
	case h == nil:
		t.Errorf("it may start, want it to wait for %v: %s", wait, message)
	case time.Until(h.Until) != wait || !strings.Contains(h.Message, message) || len(strings.Fields(h.Message)) > 25:
		t.Errorf("it waits for %v because %q; want %v, %q, in 25 words", time.Until(h.Until), h.Message, wait, message)
	}
}

// TestStartLeavesNothing: a record is there while something starts, and gone when it has started, failed or was
// forgotten.
func TestStartLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	keeper := open(t, dir)
	subject := pod("a", "p")
	for name, end := range map[string]func(){
		"success": func() { keeper.Leave(subject, true) },
		"failure": func() { keeper.Leave(subject, false) },
		"forget":  func() { keeper.Forget(subject) },
		"removed": func() { keeper.KeepPods(func(string) bool { return false }) },
	} {
		if h := keeper.Enter(subject, ignore); h != nil {
			t.Fatalf("%s: a pod that killed nothing is held back: %+v", name, h)
		}
		if files(t, dir) != 1 {
			t.Errorf("%s: no record while the pod starts", name)
		}
		end()
		keeper.Leave(subject, true) // of a subject that is not under way
		if files(t, dir) != 0 || len(keeper.records) != 0 {
			t.Errorf("%s: a record is left", name)
		}
	}
}

// TestSecondDeath: one death makes a suspect, which may try again. The second holds the pod back, the more deaths the
// longer.
func TestSecondDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		subject := pod("a", "p")
		if h := died(t, dir, 1, subject).Enter(subject, ignore); h != nil {
			t.Errorf("held back after one death: %+v", h)
		}
		keeper := open(t, dir) // died in that start
		wantHeld(t, keeper.Enter(subject, ignore), time.Minute, "ended 2 times while this pod was starting")
		keeper = open(t, dir) // died of something else
		wantHeld(t, keeper.Enter(subject, ignore), time.Minute, "ended 2 times")
		time.Sleep(time.Minute)
		if h := keeper.Enter(subject, ignore); h != nil {
			t.Errorf("still held back after the pause: %+v", h)
		}
		keeper = open(t, dir)
		wantHeld(t, keeper.Enter(subject, ignore), 2*time.Minute, "ended 3 times")
		time.Sleep(2 * time.Minute)
		if h := keeper.Enter(subject, ignore); h != nil {
			t.Errorf("still held back: %+v", h)
		}
		keeper.Leave(subject, false)
		if files(t, dir) != 1 {
			t.Error("a failed start made the pod innocent")
		}
		if h := keeper.Enter(subject, ignore); h != nil {
			t.Errorf("held back: %+v", h)
		}
		keeper.Leave(subject, true)
		if keeper = open(t, dir); files(t, dir) != 0 || keeper.Enter(subject, ignore) != nil {
			t.Error("a pod that has started is still a suspect")
		}
	})
}

// TestDeleteReleases: the record of a pod goes with the pod, and so does what it did to its namespace.
func TestDeleteReleases(t *testing.T) {
	dir := t.TempDir()
	bad := pod("a", "bad")
	other := pod("a", "other")
	died(t, dir, 2, bad)
	keeper := died(t, dir, 1, other)
	woken := 0
	h := keeper.Enter(other, func() { woken++ })
	if h == nil || h.Turn || !strings.Contains(h.Message, "2 times with pod a/bad") {
		t.Errorf("a suspect of the namespace waits too: got %+v", h)
	}
	if keeper.Enter(pod("a", "new"), ignore) != nil {
		t.Error("a pod that was never under way at a death is held back")
	}
	keeper.KeepPods(func(uid string) bool { return uid != bad.UID })
	if woken != 1 {
		t.Errorf("the waiting pod was woken %d times, want once", woken)
	}
	if h := keeper.Enter(other, ignore); h != nil {
		t.Errorf("held back after the cause was deleted: %+v", h)
	}
}

// TestSuspectsTakeTurns: one at a time, and who starts many does not delay who starts one.
func TestSuspectsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bystander := pod("z", "only")
		all := []Subject{bystander}
		for i := range 5 {
			all = append(all, pod("many", fmt.Sprint(i)))
		}
		keeper := died(t, t.TempDir(), 1, all...)
		var woken []string
		enter := func(s Subject) *Hold { return keeper.Enter(s, func() { woken = append(woken, s.Name) }) }
		if h := enter(all[1]); h != nil {
			t.Fatalf("the first waits: %+v", h)
		}
		for _, s := range []Subject{all[2], all[3], bystander} {
			if h := enter(s); h == nil || !h.Turn || time.Until(h.Until) != turnLimit {
				t.Errorf("%s next to another suspect: got %+v, want it to wait for its turn", s.Name, h)
			}
		}
		if h := enter(pod("many", "new")); h != nil {
			t.Errorf("a pod that is no suspect waits for a turn: %+v", h)
		}
		keeper.Leave(all[1], true)
		if !slices.Equal(woken, []string{"only"}) {
			t.Fatalf("woken: %q, want the pod of the namespace with one suspect", woken)
		}
		if h := enter(all[2]); h == nil {
			t.Error("it took the turn of the pod that was woken")
		}
		keeper.Withdraw(bystander)
		if !slices.Equal(woken, []string{"only", "1"}) {
			t.Errorf("woken: %q, want the next when one wants no turn any more", woken)
		}
		if h := enter(all[2]); h != nil {
			t.Errorf("no subject has the turn: %+v", h)
		}
		time.Sleep(turnLimit)
		if h := enter(all[3]); h != nil {
			t.Errorf("a start that hangs delays the others for longer than a turn: %+v", h)
		}
	})
}

// TestFewDeaths: of fifty pods that each kill the process, and one that does not, the one starts after a death or two,
// and within an hour the process dies a few times.
func TestFewDeaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		innocent := pod("b", "innocent")
		all := []Subject{innocent}
		for i := range 50 {
			all = append(all, pod("a", fmt.Sprint(i)))
		}
		keeper := died(t, dir, 1, all...)
		deaths := 1
		started := false
		for end := time.Now().Add(time.Hour); time.Now().Before(end); {
			next := end
			for _, s := range all {
				h := keeper.Enter(s, ignore)
				if h != nil {
					next = earlier(next, h.Until)
					continue
				}
				if s == innocent {
					started = true
					keeper.Leave(s, true)
					continue
				}
				deaths++
				keeper = open(t, dir)
				next = time.Now()
				break
			}
			if !started && deaths > 2 {
				t.Fatal("the innocent pod has not started after two deaths")
			}
			time.Sleep(time.Until(next))
		}
		if !started || deaths < 3 || deaths > 8 {
			t.Errorf("%d deaths within an hour, want 3 to 8; the innocent pod started: %v", deaths, started)
		}
	})
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// TestImages are held back by themselves, whatever pod wants them, and are dropped when no pod wants them.
func TestImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		img := Image("registry.test/bomb:1")
		if h := died(t, dir, 1, img).Enter(img, nil); h != nil {
			t.Errorf("held back after one death: %+v", h)
		}
		keeper := open(t, dir)
		wantHeld(t, keeper.Enter(img, nil), time.Minute, `ended 2 times while it pulled image "registry.test/bomb:1"`)
		if h := keeper.Enter(Image("registry.test/other:1"), nil); h != nil {
			t.Errorf("another image is held back: %+v", h)
		}
		keeper.KeepPods(func(string) bool { return false })
		time.Sleep(time.Minute)
		for range 2 { // two pods at once
			if h := keeper.Enter(img, nil); h != nil {
				t.Errorf("held back after the pause: %+v", h)
			}
		}
		keeper.Leave(img, false)
		keeper.Leave(img, false)
		keeper.Leave(Image("registry.test/other:1"), true)
		if files(t, dir) != 1 {
			t.Errorf("%d records, want that of the image", files(t, dir))
		}
		time.Sleep(imageAge + time.Second)
		if open(t, dir); files(t, dir) != 0 {
			t.Error("the record of an image outlives its age")
		}
	})
}

// TestDamagedRecords do no harm, and do not stay.
func TestDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	died(t, dir, 2, pod("a", "p"))
	for name, body := range map[string]string{
		"half":               `{"uid":`,
		"x.tmp":              "",
		"big":                strings.Repeat(" ", maxRecord+1),
		pod("a", "q").file(): `{"name":"another","uid":"u"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	k := open(t, dir)
	if len(k.records) != 1 || files(t, dir) != 1 {
		t.Errorf("%d records and %d files, want those of the one pod", len(k.records), files(t, dir))
	}
}

func TestNilHoldsNothingBack(t *testing.T) {
	var k *Keeper
	if h := k.Enter(pod("a", "p"), ignore); h != nil {
		t.Errorf("got %+v", h)
	}
	k.Leave(pod("a", "p"), false)
	k.Withdraw(pod("a", "p"))
	k.Forget(pod("a", "p"))
	k.KeepPods(func(string) bool { return false })
}

// BenchmarkStart is what the records cost the start of a pod.
func BenchmarkStart(b *testing.B) {
	k, err := Open(b.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		k.Enter(pod("a", "p"), ignore)
		k.Leave(pod("a", "p"), true)
	}
}

// TestTurnPassesWithoutAnAnswer: a suspect that was woken for its turn, or whose turn it is when another one asks, and
// that never asks again delays the others for one turn, and not for good.
func TestTurnPassesWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := pod("a", "silent")
		other := pod("b", "other")
		first := pod("c", "first")
		keeper := died(t, t.TempDir(), 1, silent, other, first)
		if h := keeper.Enter(first, ignore); h != nil {
			t.Fatalf("the first waits: %+v", h)
		}
		woken := 0
		for _, s := range []Subject{silent, other} {
			if h := keeper.Enter(s, func() { woken++ }); h == nil || !h.Turn {
				t.Fatalf("%s next to another suspect: got %+v", s.Name, h)
			}
		}
		time.Sleep(turnLimit) // the first hangs
		h := keeper.Enter(other, ignore)
		if h == nil || time.Until(h.Until) != turnLimit || woken != 1 {
			t.Fatalf("it is the turn of the silent one, which was woken %d times: got %+v", woken, h)
		}
		time.Sleep(turnLimit / 2)
		if h = keeper.Enter(other, ignore); h == nil || time.Until(h.Until) != turnLimit/2 || woken != 1 {
			t.Fatalf("half a turn later, woken %d times: got %+v", woken, h)
		}
		time.Sleep(time.Until(h.Until))
		if h = keeper.Enter(other, ignore); h != nil {
			t.Errorf("a suspect that does not ask keeps the turn: %+v", h)
		}
		keeper.Leave(other, true)
		if h = keeper.Enter(silent, ignore); h != nil {
			t.Errorf("the silent one asks at last: %+v", h)
		}
	})
}
