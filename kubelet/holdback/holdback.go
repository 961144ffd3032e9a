// SPDX-License-Identifier: Apache-2.0

// Package holdback keeps pods and images that end the process from ending it again and again. It notes on disk which
// pods are being started and which images are being pulled. A subject that was under way when the process died is a
// suspect: suspects start one at a time. A subject that was under way at two deaths is held back for a while, which
// grows with each further death. The pod workers and the image manager ask it; it starts and stops nothing.
//
//	no record --Enter--> under way --Leave--> no record
//	                        | the process dies, and Open finds the record
//	                        v
//	                     suspect --Enter, in its turn--> under way --Leave(ok), Forget--> no record
//	                        ^                               | Leave(failed), or the process dies again
//	                        `-------------------------------'
//
// Invariants:
//  1. A record is in the directory before the start that it is about. It need not survive the machine, only the
//     process: no fsync.
//  2. Only one suspect pod holds the turn, for turnLimit at most, so that one that hangs only delays the others. The
//     same limit holds for a suspect whose turn it is and that does not ask.
//  3. In a namespace with a pod that was under way at two deaths no suspect starts before the pause is over: so a
//     hundred such pods cause a few deaths an hour, and not a hundred. Pods that were never under way at a death are
//     not delayed at all.
package holdback

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// turnLimit is how long a suspect may keep the others waiting.
	turnLimit = 30 * time.Second
	// pauseMin is the pause after the second death; each further one doubles it, to pauseMax at most.
	pauseMin = time.Minute
	pauseMax = time.Hour
	// imageAge is when the record of an image that was not pulled since is dropped.
	imageAge = 7 * 24 * time.Hour
	// maxRecord limits the size of a record that is read.
	maxRecord = 64 << 10
	tmpSuffix = ".tmp"
)

// Subject is a pod that is started or an image that is pulled.
type Subject struct {
	// UID is a pod's; empty for an image.
	UID       string `json:"uid,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Name is a pod's name or an image's reference.
	Name string `json:"name"`
}

// Image returns the subject of an image.
func Image(ref string) Subject { return Subject{Name: ref} }

func (s Subject) isImage() bool { return s.UID == "" }

func (s Subject) what() string {
	if s.isImage() {
		return "the pull of an image"
	}
	return "the start of a pod"
}

// file is the name of the subject's record.
func (s Subject) file() string {
	key := "pod/" + s.UID
	if s.isImage() {
		key = "image/" + s.Name
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// Hold is why a subject may not start now.
type Hold struct {
	// Until is when to ask again; the caller is woken if that is possible earlier.
	Until time.Time
	// Message is for users.
	Message string
	// Turn: it waits for its turn only, and needs no event.
	Turn bool
}

// record is what is on disk about a subject.
type record struct {
	Subject
	// Deaths is how often the process died while the subject was under way.
	Deaths int `json:"deaths,omitempty"`
	// Last is the time at which the last of these deaths was found.
	Last time.Time `json:"last,omitzero"`
	// Running: the subject is under way.
	Running bool `json:"running,omitempty"`

	count int    // of starts under way
	wake  func() // it waits for its turn; nil: it does not
	// called is when it was its turn, and it was woken; zero: not since it asked.
	called time.Time
}

// Keeper has the records. A nil Keeper holds nothing back. It is safe for concurrent use.
type Keeper struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	records map[string]*record // by Subject.file
	turn    *record            // the suspect whose turn it is; nil: there is none
	turnEnd time.Time
}

// Open reads the records in dir, which it makes. Each subject that was under way when the previous process died has one
// more death.
func Open(dir string, log *slog.Logger) (*Keeper, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of starts: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read directory of starts: %w", err)
	}
	k := &Keeper{dir: dir, log: log, records: map[string]*record{}}
	for _, e := range entries {
		k.load(e.Name())
	}
	return k, nil
}

// load reads one record. A file that is no record is removed: a process died while it wrote it.
func (k *Keeper) load(name string) {
	now := time.Now()
	record, err := read(filepath.Join(k.dir, name))
	if err != nil || record.file() != name || record.isImage() && !record.Running && now.Sub(record.Last) > imageAge {
		k.remove(name)
		return
	}
	if record.Last.After(now) { // the clock was set back
		record.Last = now
	}
	if record.Running {
		record.Running = false
		record.Deaths++
		record.Last = now
		k.log.Warn("process ended during "+record.what(), "name", record.Name, "namespace", record.Namespace, "times",
			record.Deaths)
		k.write(record)
	}
	k.records[name] = record
}

func read(path string) (*record, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxRecord {
		return nil, errors.New("no record")
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("read record of a start: %w", err)
	}
	return r, nil
}

// Enter notes that s is under way and returns nil, or why it must wait. wake is called when s may ask again before
// Hold.Until.
func (k *Keeper) Enter(s Subject, wake func()) *Hold {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	hold, wakeOther := k.enterLocked(s, wake)
	k.mu.Unlock()
	if wakeOther != nil {
		wakeOther()
	}
	return hold
}

// enterLocked is Enter. The caller unlocks and calls wakeOther, if it is not nil.
func (k *Keeper) enterLocked(s Subject, wake func()) (hold *Hold, wakeOther func()) {
	r := k.records[s.file()]
	if r == nil {
		r = &record{Subject: s}
		k.records[s.file()] = r
	}
	r.called = time.Time{}
	if hold, wakeOther = k.holdLocked(r, wake); hold != nil {
		return hold, wakeOther
	}
	r.wake = nil
	r.count++
	if !r.Running {
		r.Running = true
		k.write(r)
	}
	return nil, nil
}

// Leave notes that s, which entered, is no longer under way. If ok, it succeeded and is no suspect any more.
func (k *Keeper) Leave(s Subject, ok bool) {
	if k == nil {
		return
	}
	k.mu.Lock()
	record := k.records[s.file()]
	if record == nil || record.count == 0 {
		k.mu.Unlock()
		return // forgotten
	}
	if ok {
		record.Deaths = 0
	}
	if record.count--; record.count == 0 {
		record.Running = false
		if record.Deaths == 0 {
			k.dropLocked(record)
		} else {
			k.write(record)
		}
	}
	k.passTurnUnlock(record)
}

// Withdraw notes that s, which was held back, does not want to start any more.
func (k *Keeper) Withdraw(s Subject) {
	if k == nil {
		return
	}
	k.mu.Lock()
	r := k.records[s.file()]
	if r == nil {
		k.mu.Unlock()
		return
	}
	r.wake = nil
	k.passTurnUnlock(r)
}

// Forget drops what is known about s: it is gone.
func (k *Keeper) Forget(s Subject) {
	if k == nil {
		return
	}
	k.mu.Lock()
	r := k.records[s.file()]
	if r == nil {
		k.mu.Unlock()
		return
	}
	k.dropLocked(r)
	r.count = 0
	k.passTurnUnlock(r)
}

// KeepPods forgets the pods that do not exist.
func (k *Keeper) KeepPods(exists func(uid string) bool) {
	if k == nil {
		return
	}
	k.mu.Lock()
	var gone []Subject
	for _, r := range k.records {
		if !r.isImage() {
			gone = append(gone, r.Subject)
		}
	}
	k.mu.Unlock()
	for _, s := range gone {
		if !exists(s.UID) {
			k.Forget(s)
		}
	}
}

// dropLocked removes a record.
func (k *Keeper) dropLocked(r *record) {
	delete(k.records, r.file())
	k.remove(r.file())
}

// passTurnUnlock ends the turn of r, if r has it, unlocks, and wakes the suspect whose turn is next.
func (k *Keeper) passTurnUnlock(r *record) {
	if k.turn == r && r.count == 0 {
		k.turn = nil
	}
	wake := func() {}
	now := time.Now()
	if k.turn == nil || !now.Before(k.turnEnd) {
		if next := k.firstLocked(now); next != nil {
			next.called = now
			wake = next.wake
		}
	}
	k.mu.Unlock()
	wake()
}

// write replaces the record's file. Without it the start is not counted if the process dies: that is no reason not to
// start.
func (k *Keeper) write(r *record) {
	body, err := json.Marshal(r)
	if err != nil {
		k.log.Warn("record a start", "err", err)
		return
	}
	path := filepath.Join(k.dir, r.file())
	if r.Deaths == 0 {
		err = os.WriteFile(path, body, 0o600)
	} else {
		err = os.WriteFile(path+tmpSuffix, body, 0o600) // what was counted before must survive a death here
		if err == nil {
			err = os.Rename(path+tmpSuffix, path)
		}
	}
	if err != nil {
		k.log.Warn("record a start", "err", err)
	}
}

func (k *Keeper) remove(name string) {
	if err := os.Remove(filepath.Join(k.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.log.Warn("remove record of a start", "err", err)
	}
}
