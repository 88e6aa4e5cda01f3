package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// demoDawn is what the clock of each demo begins with: half past four in Zurich on the last day of summer time, when
// yesterday has ended and is not in the books yet.
var demoDawn = time.Date(2026, 10, 24, 2, 30, 0, 0, time.UTC)

// demoClock is the clock of the demos that run beside tests, so that none depends on the hour at which it runs.
var demoClock = func() func() time.Time {
	began := time.Now()
	return func() time.Time { return demoDawn.Add(time.Since(began)) }
}()

// demoEnv is what a command of a demo gets, which has this clock.
func demoEnv(ctx context.Context, clock func() time.Time, stdout, stderr io.Writer) *env {
	return &env{ctx: ctx, now: clock, getenv: func(string) string { return "" }, stdin: strings.NewReader(""),
		stdout: stdout, stderr: stderr, nouns: nouns(), commands: allCommands(), installed: installedDir,
		uid: os.Geteuid(), caller: callingUser(os.Getenv)}
}

// A runningDemo is a demo that serves.
type runningDemo struct {
	text  string        // what it printed before it served
	later *bufio.Reader // what it prints later, which somebody must read
	stop  func() error
}

// runDemo runs the demo, with more options, until it is stopped.
func runDemo(more ...string) (*runningDemo, error) {
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	var log bytes.Buffer
	ended := make(chan error, 1)
	args := append([]string{"demo", "-addr", "127.0.0.1:0"}, more...)
	go func() {
		err := demoEnv(ctx, demoClock, in, &log).dispatch(args)
		in.CloseWithError(fmt.Errorf("the demo ended: %v", err))
		ended <- err
	}()
	d := &runningDemo{later: bufio.NewReader(out), stop: func() error {
		cancel()
		if err := <-ended; err != nil {
			return fmt.Errorf("the demo ended with %v\n%s", err, log.String())
		}
		return nil
	}}
	late := time.AfterFunc(3*time.Minute, func() { out.CloseWithError(errors.New("three minutes are over")) })
	defer late.Stop()
	for !strings.Contains(d.text, "Ctrl-C stops it.") {
		line, err := d.later.ReadString('\n')
		d.text += line
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%v\n%s", err, d.text), d.stop())
		}
	}
	return d, nil
}

// demoFiles returns the directory of a demo's files that have a past until demoDawn, which takes hundreds of calls, and
// of which no run has made anything yet.
var demoFiles = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "widgetd-demo-test-"); err != nil {
		return "", err
	}
	afterAll(func() error { return os.RemoveAll(dir) })
	d, e := placedDemo(context.Background(), dir, func() time.Time { return demoDawn })
	return dir, d.makeFiles(e, slog.New(slog.DiscardHandler))
})

// placedDemo returns a demo that nobody reaches, whose files are or will be in a directory, and what it runs with.
func placedDemo(ctx context.Context, dir string, clock func() time.Time) (*demo, *env) {
	e := demoEnv(ctx, clock, io.Discard, io.Discard)
	e.files = map[string]string{"db": filepath.Join(dir, "widgetd.db"), "key": filepath.Join(dir, "widgetd.key")}
	d := &demo{dir: dir, clock: clock}
	const at = "http://127.0.0.1:"
	d.place(at+"1", at+"2", at+"3", at+"4", at+"5", e.files["db"])
	return d, e
}

// copyDemo copies the files of demoFiles into a directory.
func copyDemo(dir string) error {
	from, err := demoFiles()
	for _, name := range []string{"widgetd.db", "widgetd.key"} {
		var content []byte
		if err == nil {
			content, err = os.ReadFile(filepath.Join(from, name))
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
	}
	return err
}

// startDemo runs the demo until the test ends and returns what it printed before it served. Without -dir it goes on
// with a copy of demoFiles.
func startDemo(t testing.TB, more ...string) string {
	t.Helper()
	text, later := startDemoAndListen(t, more...)
	go io.Copy(io.Discard, later)
	return text
}

// startDemoAndListen is startDemo, and returns what the demo prints later, which somebody must read.
func startDemoAndListen(t testing.TB, more ...string) (text string, later *bufio.Reader) {
	t.Helper()
	if !slices.Contains(more, "-dir") {
		dir := t.TempDir()
		must(t, copyDemo(dir))
		more = append(more, "-dir", dir)
	}
	d, err := runDemo(more...)
	must(t, err)
	t.Cleanup(func() {
		if err := d.stop(); err != nil {
			t.Error(err)
		}
	})
	return d.text, d.later
}

// sharedDemo returns what the demo printed that is for all tests which neither disturb others by what they do to
// it nor are disturbed: they read its pages, or look only at what they made themselves.
func sharedDemo(t testing.TB) string {
	t.Helper()
	d, err := demoOfAll()
	must(t, err)
	return d.text
}

var demoOfAll = sync.OnceValues(func() (*runningDemo, error) {
	dir, err := os.MkdirTemp("", "widgetd-demo-test-")
	if err != nil {
		return nil, err
	}
	if err := copyDemo(dir); err != nil {
		return nil, err
	}
	d, err := runDemo("-dir", dir)
	if err == nil {
		go io.Copy(io.Discard, d.later)
		afterAll(func() error { return errors.Join(d.stop(), os.RemoveAll(dir)) })
	}
	return d, err
})

// printed returns what stands behind a label of the demo's first lines.
func printed(t testing.TB, text, label string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(label) + `: +(\S.*)$`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no %q in\n%s", label, text)
	}
	return found[1]
}

// A demoFeed is the feed of events of a demo's account from now on.
type demoFeed struct {
	t             testing.TB
	events, token string // address, and what it is read with
	after         string // cursor
}

// followDemo begins to follow the events of a demo that printed a text.
func followDemo(t testing.TB, text string) *demoFeed {
	t.Helper()
	f := &demoFeed{t, printed(t, text, "The service behind it") + "/events?after=",
		captures(`(?m)^TOKEN=(\S+)$`, text)[0], "now"}
	f.next("")
	return f
}

// next returns the orders of the events that there are, or that come within the seconds that it waits.
func (f *demoFeed) next(more string) (subjects []string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), "GET", f.events+f.after+more, nil)
	must(f.t, err)
	r.Header.Set("Authorization", "Bearer "+f.token)
	res, err := http.DefaultClient.Do(r)
	must(f.t, err)
	defer res.Body.Close()
	var page struct {
		Data []struct {
			Subject string `json:"order_id"` // if it is an order
		}
		Next string
	}
	must(f.t, json.NewDecoder(res.Body).Decode(&page))
	failIf(f.t, res.StatusCode != http.StatusOK, "the feed answers %s", res.Status)
	f.after = page.Next
	for _, e := range page.Data {
		subjects = append(subjects, e.Subject)
	}
	return subjects
}

// await returns after an event of a kind of a wanted order.
func (f *demoFeed) await(kind eventType, wanted func(subject string) bool) {
	f.t.Helper()
	for range 20 { // of fifteen seconds
		if slices.ContainsFunc(f.next("&wait=15&type="+string(kind)), wanted) {
			return
		}
	}
	f.t.Fatalf("there is no event %s", kind)
}

// A browser is Chromium behind its driver (W3C WebDriver).
type browser struct {
	t       testing.TB
	process *exec.Cmd // of the driver
	driver  string    // its address
	session string    // the path of its one session
	profile string    // the directory of the browser's files
}

// chromium is the one browser of all tests, since to start one takes more time than most tests have it do anything.
// Whoever has it has it alone.
var chromium struct {
	sync.Mutex
	running *browser // nil: none does, since no test asked for it, or the one that had it failed
}

// startBrowser gives a test a headless Chromium until it ends, with an empty tab and without cookies.
func startBrowser(t testing.TB) *browser {
	t.Helper()
	programsOrSkip(t, "chromium", "chromedriver")
	chromium.Lock()
	t.Cleanup(chromium.Unlock)
	if chromium.running == nil {
		chromium.running = newBrowser(t)
	}
	b := *chromium.running
	b.t = t
	t.Cleanup(func() {
		if t.Failed() {
			chromium.running = nil
			b.end()
			return
		}
		b.clear()
	})
	return &b
}

// newBrowser starts a headless Chromium that runs until its end, or that of all tests.
func newBrowser(t testing.TB) *browser {
	t.Helper()
	profile, err := os.MkdirTemp("", "widgetd-chromium-")
	must(t, err)
	b := &browser{t: t, profile: profile}
	afterAll(b.end)
	for range 5 { // it wants one port of both families, of which somebody else may have taken one
		if b.startDriver(); b.driver != "" {
			break
		}
	}
	if b.driver == "" {
		t.Fatal("chromedriver does not start")
	}
	args := []string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--window-size=800,1000", "--user-data-dir=" + profile}
	created := b.call("POST", "/session", node{"capabilities": node{"alwaysMatch": node{"browserName": "chrome",
		"goog:chromeOptions": node{"args": args}, "timeouts": node{"implicit": 10_000}}}})
	b.session = "/session/" + created.(node)["sessionId"].(string)
	return b
}

// startDriver starts chromedriver; without an address of the driver it has not found a port.
func (b *browser) startDriver() {
	b.t.Helper()
	b.process = exec.Command("chromedriver", "--port=0")
	stdout, err := b.process.StdoutPipe()
	if err == nil {
		err = b.process.Start()
	}
	must(b.t, err)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		found := regexp.MustCompile(`started successfully on port (\d+)`).FindStringSubmatch(lines.Text())
		if found != nil {
			go io.Copy(io.Discard, stdout)
			b.driver = "http://127.0.0.1:" + found[1]
			return
		}
	}
	b.process.Wait()
}

// end ends the browser and its driver, if they run.
func (b *browser) end() error {
	if b.session != "" {
		if r, err := http.NewRequest("DELETE", b.driver+b.session, nil); err == nil {
			if res, err := http.DefaultClient.Do(r); err == nil {
				res.Body.Close()
			}
		}
		b.session = ""
	}
	if b.driver != "" {
		b.process.Process.Kill()
		b.process.Wait()
		b.driver = ""
	}
	return os.RemoveAll(b.profile)
}

// clear closes the tab, opens an empty one, and forgets cookies and files.
func (b *browser) clear() {
	b.t.Helper()
	tab := b.call("POST", b.session+"/window/new", node{"type": "tab"}).(node)
	b.call("DELETE", b.session+"/window", nil)
	b.call("POST", b.session+"/window", node{"handle": tab["handle"]})
	for _, command := range []string{"Network.clearBrowserCookies", "Network.clearBrowserCache"} {
		b.emulate(command, node{})
	}
}

// call sends a command to the driver and returns its value.
func (b *browser) call(method, path string, body any) any {
	b.t.Helper()
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(encodeJSON(body))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, b.driver+path, reader)
	must(b.t, err)
	res, err := http.DefaultClient.Do(r)
	must(b.t, err)
	defer res.Body.Close()
	var answer struct{ Value any }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != 200 {
		b.t.Fatalf("%s %s: %s %v %v", method, path, res.Status, answer.Value, err)
	}
	return answer.Value
}

// emulate sends a command of Chromium's own protocol: how wide the window is, which colours are preferred.
func (b *browser) emulate(command string, params node) {
	b.t.Helper()
	b.call("POST", b.session+"/goog/cdp/execute", node{"cmd": command, "params": params})
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.call("POST", b.session+"/url", node{"url": url})
}

// find waits for an element and returns its path.
func (b *browser) find(xpath string) string {
	b.t.Helper()
	found := b.call("POST", b.session+"/element", map[string]string{"using": "xpath", "value": xpath}).(node)
	for _, id := range found {
		return b.session + "/element/" + id.(string)
	}
	b.t.Fatalf("no %s", xpath)
	return ""
}

func (b *browser) click(xpath string) {
	b.t.Helper()
	b.call("POST", b.find(xpath)+"/click", node{})
}

func (b *browser) text(xpath string) string {
	b.t.Helper()
	return b.call("GET", b.find(xpath)+"/text", nil).(string)
}

func (b *browser) typeInto(xpath, text string) {
	b.t.Helper()
	b.call("POST", b.find(xpath)+"/value", map[string]string{"text": text})
}

// await runs a script in the page until it calls its last argument, and returns what it calls that with.
func (b *browser) await(script string, args ...any) any {
	b.t.Helper()
	return b.call("POST", b.session+"/execute/async", node{"script": script, "args": append([]any{}, args...)})
}

// fitsInFrame looks whether a page scrolls sideways, or has an element that is cut off, in windows as wide as a
// telephone, a tablet and a desk. except is a selector of what may be wider; more is a script that finds more faults.
// A window can't be as narrow as a telephone, but a frame in the page that is open can.
func (b *browser) fitsInFrame(address, except, more string) {
	b.t.Helper()
	script := `const [address, except, done] = arguments, faults = [], box = e => e.getBoundingClientRect();
		const frame = document.createElement("iframe");
		frame.style = "border:0;position:fixed;top:0;left:0;height:900px";
		frame.onload = () => {
			const page = frame.contentDocument, root = page.documentElement;
			for (const wide of [320, 360, 768, 1280]) {
				const fault = text => faults.push(wide + " pixels wide: " + text);
				frame.style.width = wide + "px";
				frame.style.width = 2 * wide - root.clientWidth + "px"; // beside the scroll bar
				if (root.clientWidth != wide) fault("the frame is " + root.clientWidth + " wide");
				if (root.scrollWidth > wide) fault("it scrolls sideways: " + root.scrollWidth);
				for (const e of [...page.body.querySelectorAll("*")].filter(e => !e.closest(except)))
					if (box(e).right > wide + .5 || box(e).left < -.5)
						fault(e.tagName + " " + e.textContent.slice(0, 40) + " ends at " + box(e).right);
				MORE
			}
			frame.remove();
			done(faults.slice(0, 20));
		};
		frame.src = address;
		document.body.append(frame);`
	faults := b.await(strings.Replace(script, "MORE", more, 1), address, except)
	if fmt.Sprint(faults) != "[]" {
		b.t.Errorf("%s: %v", address, faults)
	}
}

// pictures is the directory for pictures of what the browser shows; "": none are taken.
func pictures() string { return os.Getenv("WIDGETD_TEST_PICTURES") }

// screenshot saves what the browser shows, when a place for pictures is named.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	dir := pictures()
	if dir == "" {
		return
	}
	picture, err := base64.StdEncoding.DecodeString(b.call("GET", b.session+"/screenshot", nil).(string))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), picture, 0o600)
	}
	must(b.t, err)
}

// fileText returns the text of a file.
func fileText(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	must(t, err)
	return string(text)
}

// What the demo says is held here against the calendar of this file: a business day ends at 04:00 by the clocks of its
// zone, which none of them skips or shows twice, and is final two hours later.

// A movedDemo is a demo whose clock is moved. Nobody reaches it, and its workers work when they are told to.
type movedDemo struct {
	*demo
	t     *testing.T
	files string // directory
}

// moveDemo has a test move the clock of a demo, whose files are made at start unless they are those of demoDawn.
func moveDemo(t *testing.T, start time.Time, test func(*movedDemo)) {
	t.Helper()
	if start.Equal(demoDawn) {
		_, err := demoFiles() // made outside the bubble, since others have them, too
		must(t, err)
	}
	synctest.Test(t, func(t *testing.T) {
		d := &movedDemo{t: t, files: t.TempDir()}
		if start.Equal(demoDawn) {
			must(t, copyDemo(d.files))
		}
		moved := time.Until(start)
		d.open(func() time.Time { return time.Now().Add(moved) })
		t.Cleanup(func() { d.close() })
		test(d)
	})
}

// open begins a run over the files.
func (d *movedDemo) open(clock func() time.Time) {
	d.t.Helper()
	run, e := placedDemo(d.t.Context(), d.files, clock)
	quiet := slog.New(slog.DiscardHandler)
	must(d.t, run.makeFiles(e, quiet))
	must(d.t, run.open(e, quiet))
	d.demo = run
}

// close ends the run.
func (d *movedDemo) close() {
	d.t.Helper()
	d.server.outbound.close()
	must(d.t, d.server.store.close())
}

// moveTo moves the clock of the bubble forward, and has done what the workers and the sweeps do until nothing is due
// any more.
func (d *movedDemo) moveTo(at time.Time) {
	d.t.Helper()
	time.Sleep(at.Sub(d.clock()))
	ctx := d.t.Context()
	must(d.t, d.payOut(ctx))
	w := newBooksWorker(booksOf(d.server))
	w.enqueue(ctx)
	for rounds := 0; ; rounds++ {
		due, err := d.server.store.dueExports(d.examples["books"], newStamp(d.clock()), 1)
		must(d.t, err)
		if len(due) == 0 {
			break
		}
		failIf(d.t, rounds == 20, "%v: something is always due", at)
		must(d.t, w.export(ctx, d.examples["books"]))
	}
	failIf(d.t, d.server.sweep(ctx, d.clock().Add(time.Hour)), "%v: the sweep ended before it was done", at)
}

// shows returns a page of one of the demo's handlers.
func (d *movedDemo) shows(of http.Handler, path string) string {
	d.t.Helper()
	w := httptest.NewRecorder()
	of.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	body, err := io.ReadAll(w.Result().Body)
	must(d.t, err)
	equal(d.t, path, w.Code, http.StatusOK)
	return html.UnescapeString(string(body))
}

// endOfDay returns when a business day ends in a zone.
func endOfDay(date businessDate, zone *time.Location) time.Time {
	day := midnight(date)
	return time.Date(day.Year(), day.Month(), day.Day()+1, 4, 0, 0, 0, zone)
}

// lastEnded returns the last business day that has ended at a time.
func lastEnded(at time.Time, zone *time.Location) businessDate {
	date := at.In(zone).Format(time.DateOnly)
	for endOfDay(date, zone).After(at) {
		date = midnight(date).AddDate(0, 0, -1).Format(time.DateOnly)
	}
	return date
}

// count returns the number that a query of the demo's file gives.
func (d *movedDemo) count(query string, args ...any) int64 {
	d.t.Helper()
	n, err := oneValue[int64](d.server.store.queries, query, args...)
	must(d.t, err)
	return n
}

// judge holds what the demo says against the calendar, and then has something sold at each counter.
func (d *movedDemo) judge() {
	d.t.Helper()
	d.judgeBooks()
	d.judgeRevenue()
	for _, c := range demoData().Counters {
		_, err := d.sell(d.t.Context(), map[string]any{"currency": c.Currency, "return_url": d.page + "/thanks",
			"lines": []any{c.Food[0].wanted(1)}}, methodCard)
		must(d.t, err)
	}
}

// judgeBooks looks at the page of the books: they have the days that are final and the payouts that have arrived, no
// other ones, and what they say is on the accounts is.
func (d *movedDemo) judgeBooks() {
	d.t.Helper()
	now, zone := d.clock(), zurich(d.t)
	page := d.shows(d.ledger.handler(), "/")
	clearing := clearsAtDemoBooks(d.t, page)
	final := lastEnded(now.Add(-2*time.Hour), zone)
	want, err := d.server.store.texts(`SELECT date FROM revenue_days WHERE currency = 'SEK' AND date <= ?
		ORDER BY date`, final)
	must(d.t, err)
	got := captures(`(?m)^W \d+, (\S+): Revenue \S+ SEK`, page)
	slices.Sort(got)
	equal(d.t, fmt.Sprint("days in the books at ", now), got, want)
	want, err = d.server.store.texts(`SELECT arrival_date FROM payouts WHERE currency = 'SEK' AND arrival_date <= ?
		ORDER BY arrival_date`, dateAfter(lastEnded(now, zone)))
	must(d.t, err)
	got = captures(`(?m)^W \d+, (\S+): Payout \S+ SEK`, page)
	slices.Sort(got)
	equal(d.t, fmt.Sprint("payouts in the books at ", now), got, want)

	atProvider := d.count(movedByCard+`SELECT coalesce(sum(m.amount), 0)
		FROM moved m JOIN payments y ON y.id = m.payment_id
		WHERE y.currency = 'SEK' AND m.at < ? AND NOT EXISTS (
			SELECT 1 FROM payout_items i JOIN books_exports x ON x.payout_id = i.payout_id
			WHERE i.payment_id = m.payment_id AND i.id = m.id AND x.connection_id = ? AND x.part = 'payout'
			AND x.state = 'posted' AND x.reverses IS NULL)`, newStamp(endOfDay(final, zone)), d.examples["books"])
	equal(d.t, fmt.Sprint("what the provider has at ", now), clearing, formatSigned(atProvider))
}

// judgeRevenue looks at the page of revenue, which shows yesterday.
func (d *movedDemo) judgeRevenue() {
	d.t.Helper()
	now, zone := d.clock(), zurich(d.t)
	yesterday := lastEnded(now, zone)
	state, end := dayClosed, endOfDay(yesterday, zone)
	if now.Before(end.Add(2 * time.Hour)) {
		state = dayOpen
	}
	began := newStamp(endOfDay(dateBefore(yesterday), zone))
	contains(d.t, d.shows(d.pageHandler(), "/revenue"),
		`<h2 id="day">`+midnight(yesterday).Format("Monday, 2 January 2006")+`</h2>`,
		fmt.Sprintf("<summary>In CHF: %s</summary>", groupedAmount(d.revenueOf(yesterday))),
		fmt.Sprintf("From %s to %s, %s. This is not", began, newStamp(end), state))
}

// revenueOf returns what orders in francs have brought on a business day.
func (d *movedDemo) revenueOf(date businessDate) int64 {
	d.t.Helper()
	zone := zurich(d.t)
	return d.count(`SELECT coalesce(sum(n), 0) FROM (SELECT currency, paid_at AS at, total AS n FROM orders
		UNION ALL SELECT o.currency, r.created_at, -r.amount FROM refunds r JOIN orders o ON o.id = r.order_id
			WHERE r.state = 'succeeded'
		UNION ALL SELECT y.currency, x.opened_at, -x.taken FROM disputes x JOIN payments y ON y.id = x.payment_id)
		WHERE currency = 'CHF' AND at >= ? AND at < ?`, newStamp(endOfDay(dateBefore(date), zone)),
		newStamp(endOfDay(date, zone)))
}

// zurich is the zone of the demo's restaurant.
func zurich(t testing.TB) *time.Location {
	t.Helper()
	zone, err := loadZone("Europe/Zurich")
	must(t, err)
	return zone
}

// TestDemoHours_whatIsSaidIsTrueAtEachOfThem moves the clock of a demo from the grace of a day to its end, to midnight,
// to the moment at which summer time ends, when the demo is started once more, and to the next grace, and connects its
// books once more then. With -long it goes through each hour of a day and a half, on days that are told apart by
// calendars.
func TestDemoHours_whatIsSaidIsTrueAtEachOfThem(t *testing.T) {
	t.Parallel()
	moments := []time.Duration{0, 90 * time.Minute, 19*time.Hour + 30*time.Minute, 22*time.Hour + 30*time.Minute,
		25 * time.Hour}
	walk := func(start time.Time, again int, moments []time.Duration) {
		t.Run(start.Format("2006-01-02 15:04"), func(t *testing.T) {
			t.Parallel()
			moveDemo(t, start, func(d *movedDemo) {
				for i, after := range moments {
					d.moveTo(start.Add(after))
					if i%again == again-1 {
						d.close()
						d.open(d.clock)
						d.moveTo(d.clock())
					}
					d.judge()
				}
				d.useBooks()
			})
		})
	}
	walk(demoDawn, 4, moments)
	if size(0, 1) == 0 {
		return
	}
	moments = nil
	for hour := range 37 {
		moments = append(moments, time.Duration(hour)*time.Hour)
	}
	// An hour more, an hour less, the end of a year, of a month and of a short one.
	for _, before := range []businessDate{"2026-10-24", "2027-03-27", "2026-12-30", "2026-06-29", "2028-02-28"} {
		walk(midnight(before).Add(12*time.Hour), 7, moments)
	}
}

// clearsAtDemoBooks returns the balance of the clearing account at the end of the page of a demo's books, whose
// balances it holds against the lines.
func clearsAtDemoBooks(t testing.TB, page string) string {
	t.Helper()
	const amount = `(-?[\d.]+)`
	ends := regexp.MustCompile(`Clearing account 1580, .*: ` + amount + `\n.* 1589, .*: ` + amount)
	found := ends.FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("the books end without balances\n%s", page)
	}
	for account, want := range map[string]string{"1580": found[1], "1589": found[2]} {
		sum := int64(0)
		line := regexp.MustCompile(`(?m)^ +` + account + ` +([\d.]+) +([\d.]+)`)
		for _, sides := range line.FindAllStringSubmatch(page, -1) {
			for i, sign := range []int64{1, -1} {
				side, valid := parseAmount(sides[1+i])
				failIf(t, !valid, "the page has an amount of %q", sides[1+i])
				sum += sign * side
			}
		}
		equal(t, "the lines of "+account, formatSigned(sum), want)
	}
	return found[1]
}
