// SPDX-License-Identifier: Apache-2.0

package parent

import (
	"os"
	"os/exec"
	"testing"
)

// child starts a process that ends when its standard input does.
func child(t *testing.T) (pid int, end func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = in.Close()
		_ = cmd.Wait() // of the second call: it was waited for
	}
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

// TestFollow: the context ends with the process that is followed, and not before.
func TestFollow(t *testing.T) {
	pid, end := child(t)
	ctx, done, err := follow(t.Context(), pid, func() int { return pid })
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if ctx.Err() != nil {
		t.Fatal("the context ended before the process")
	}
	end()
	<-ctx.Done()
}

// TestParentThatIsGone: a parent that ended before it could be followed ends the context at once.
func TestParentThatIsGone(t *testing.T) {
	pid, end := child(t)
	for name, current := range map[string]func() int{
		"adopted":   func() int { return 1 },
		"no longer": os.Getpid,
	} {
		ctx, done, err := follow(t.Context(), pid, current)
		if err != nil {
			t.Fatal(err)
		}
		if ctx.Err() == nil {
			t.Errorf("%s: the context did not end", name)
		}
		done()
	}
	end()
	ctx, done, err := follow(t.Context(), pid, func() int { return pid })
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if ctx.Err() == nil {
		t.Error("the context of a process that has ended did not end")
	}
}

// TestDone releases a process that goes on.
func TestDone(t *testing.T) {
	pid, _ := child(t)
	ctx, done, err := follow(t.Context(), pid, func() int { return pid })
	if err != nil {
		t.Fatal(err)
	}
	done()
	if ctx.Err() == nil {
		t.Error("done left the context open")
	}
}
