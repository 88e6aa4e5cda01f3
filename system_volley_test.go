package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// memoryOf returns a line of what the kernel says of a process's memory, in bytes: VmRSS is what it has, VmHWM the
// most that it has had.
func (p *process) memoryOf(line string) int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	found := regexp.MustCompile(`(?m)^` + line + `:\s+(\d+) kB$`).FindSubmatch(text)
	if err != nil || found == nil {
		p.t.Fatalf("no %s: %v", line, err)
	}
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return kilobytes << 10
}

// volley sends a request so often, all at once, and meanwhile asks for health again and again. It returns how many
// got each status, and how long the slowest health took.
func volley(t testing.TB, base string, n int, method, path, body string, headers ...string) (statuses map[int]int,
	slowest time.Duration) {
	t.Helper()
	client := newClient(t)
	var mu sync.Mutex
	statuses = map[int]int{}
	var sent atomic.Int64
	var senders, prober sync.WaitGroup
	ended := make(chan struct{})
	prober.Go(func() {
		for probes := newClient(t); ; {
			began := time.Now()
			send(probes, "GET", base+"/widget/health", "")
			slowest = max(slowest, time.Since(began))
			select {
			case <-ended:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	for range min(n, 1000) { // connections
		senders.Go(func() {
			for sent.Add(1) <= int64(n) {
				a, err := send(client, method, base+path, body, headers...)
				if err != nil {
					t.Errorf("a request has no answer: %v", err)
					return
				}
				mu.Lock()
				statuses[a.status]++
				mu.Unlock()
			}
		})
	}
	senders.Wait()
	close(ended)
	prober.Wait()
	return statuses, slowest
}

func TestVolley_ofSmallValuesTakesLittleMemory(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	token := bearer(strings.TrimSpace(o.do("token", "issue", "-account", o.account, "-scope", "books:write")))
	small := strings.TrimSuffix(strings.Repeat("{},", 1<<12), ",")
	few := strings.TrimSuffix(strings.Repeat("{},", 900), ",")
	for name, v := range map[string]struct {
		n                  int
		method, path, body string
		known              []int // statuses
	}{
		"verify with thousands of values": {size(300, 1000), "POST", "/widget/license/verify",
			`{"license_key":"x","x":[` + small + `]}`, []int{400, 503}},
		"verify with as many values as may be": {size(300, 1000), "POST", "/widget/license/verify",
			`{"license_key":"x","x":[` + few + `],"y":"` + strings.Repeat("y", 12<<10) + `"}`, []int{200, 429, 503}},
		"a mapping as large as may be": {size(100, 300), "PUT",
			"/books/connections/con_00000000000000000000000000/mapping",
			`{"x":["` + strings.Repeat("y", 240<<10) + `"],"lines":[` + few + `]}`, []int{404, 422, 429, 503}},
	} {
		p := serveProcess(t, o) // one for each, since the most that it has had is never less again
		idle := p.memoryOf("VmRSS")
		headers := []string{token}
		if v.method == "POST" {
			headers = nil
		}
		statuses, slowest := volley(t, p.base, v.n, v.method, v.path, v.body, headers...)
		above := p.memoryOf("VmHWM") - idle
		t.Logf("%s: %d at once: %d MiB above idle, health after %d ms at most, statuses %v",
			name, v.n, above>>20, slowest.Milliseconds(), statuses)
		if above > 96<<20 { // it is 40 to 80: what the collector leaves before it runs (tuneCollector), and stacks
			t.Errorf("%s: %d MiB above idle", name, above>>20)
		}
		for status := range statuses {
			if !slices.Contains(v.known, status) {
				t.Errorf("%s: %d answers have the status %d", name, statuses[status], status)
			}
		}
		p.stop(os.Interrupt)
	}
}
