package main

import (
	"fmt"
	"io"
	"net/http"
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
func volley(
	t testing.TB, base string, n int, request func() *http.Request,
) (statuses map[int]int, slowest time.Duration) {
	t.Helper()
	client := newClient(t)
	var mu sync.Mutex
	statuses = map[int]int{}
	var sent atomic.Int64
	var senders, prober sync.WaitGroup
	ended := make(chan struct{})
	prober.Go(func() {
		probes := newClient(t)
		for {
			began := time.Now()
			if res, err := probes.Get(base + "/widget/health"); err == nil {
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
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
				res, err := client.Do(request())
				if err != nil {
					t.Errorf("a request has no answer: %v", err)
					return
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				mu.Lock()
				statuses[res.StatusCode]++
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
	token := strings.TrimSpace(o.do("token", "issue", "-account", o.account, "-scope", "books:write"))
	post := func(method, path, body string, headers ...string) func(base string) *http.Request {
		return func(base string) *http.Request {
			r, err := http.NewRequest(method, base+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			must(t, setHeaders(r.Header, headers))
			return r
		}
	}
	small := strings.TrimSuffix(strings.Repeat("{},", 1<<12), ",")
	few := strings.TrimSuffix(strings.Repeat("{},", 900), ",")
	mapping := "/books/connections/con_00000000000000000000000000/mapping"
	for name, v := range map[string]struct {
		n       int
		request func(base string) *http.Request
		known   []int // statuses
	}{
		"verify with thousands of values": {size(300, 1000),
			post("POST", "/widget/license/verify", `{"license_key":"x","x":[`+small+`]}`), []int{400, 503}},
		"verify with as many values as may be": {size(300, 1000),
			post("POST", "/widget/license/verify",
				`{"license_key":"x","x":[`+few+`],"y":"`+strings.Repeat("y", 12<<10)+`"}`), []int{200, 429, 503}},
		"a mapping as large as may be": {size(100, 300),
			post("PUT", mapping, `{"x":["`+strings.Repeat("y", 240<<10)+`"],"lines":[`+few+`]}`,
				bearer(token)), []int{404, 422, 429, 503}},
	} {
		p := serveProcess(t, o) // one for each, since the most that it has had is never less again
		idle := p.memoryOf("VmRSS")
		statuses, slowest := volley(t, p.base, v.n, func() *http.Request { return v.request(p.base) })
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
