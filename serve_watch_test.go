package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"
)

// A telephone gets what 'widgetd watch' posts, as ntfy's documents say (https://docs.ntfy.sh/publish/): the text is the
// body, and title, priority and tags are headers.
type telephone struct {
	*httptest.Server
	mu     sync.Mutex
	rings  []ring
	pings  int
	answer http.HandlerFunc // in place of the usual answer; nil: none
}

// A ring is a message that came.
type ring struct {
	title, priority, tags, text, bearer, kind string
}

func newTelephone(t *testing.T) *telephone {
	p := &telephone{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		defer p.mu.Unlock()
		h := r.Header
		switch {
		case r.URL.Path == "/ping" && r.Method == "GET":
			p.pings++
		case p.answer != nil:
			p.answer(w, r)
		case r.URL.Path == "/topic-of-mine" && r.Method == "POST":
			p.rings = append(p.rings, ring{h.Get("Title"), h.Get("Priority"), h.Get("Tags"), string(text),
				h.Get("Authorization"), h.Get("Content-Type")})
			io.WriteString(w, `{"id":"x","event":"message"}`)
		default:
			w.WriteHeader(404)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// taken returns the messages that came since it was last asked, and how many pings.
func (p *telephone) taken() (rings []ring, pings int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rings, pings = p.rings, p.pings
	p.rings, p.pings = nil, 0
	return rings, pings
}

// A watchedFile is an operator whose database is watched at a time of the test's own.
type watchedFile struct {
	*operator
	phone *telephone
	now   time.Time
	limit time.Duration // for a call; 0: as without a test
}

func newWatched(t *testing.T, lines string) *watchedFile {
	w := &watchedFile{operator: newOperator(t), phone: newTelephone(t), now: time.Now()}
	w.addresses(strings.ReplaceAll(lines, "PHONE", w.phone.URL))
	return w
}

func (w *watchedFile) addresses(lines string) {
	path := watchPath(w.env["WIDGETD_DB"])
	os.Remove(path)
	must(w.t, os.WriteFile(path, []byte(lines), 0o600))
}

// run runs 'widgetd watch' a minute later.
func (w *watchedFile) run(args ...string) (string, error) {
	w.t.Helper()
	w.now = w.now.Add(time.Minute)
	out := &strings.Builder{}
	e := &env{ctx: w.t.Context(), getenv: func(name string) string { return w.env[name] }, stdin: strings.NewReader(""),
		stdout: out, stderr: out, nouns: nouns(), now: func() time.Time { return w.now }, uid: os.Geteuid(),
		callLimit: w.limit}
	e.commands = allCommands()
	line := append([]string{"watch"}, args...)
	err := e.dispatch(line)
	noteCommand(line, err)
	said := out.String() + fmt.Sprint(err)
	for _, secret := range []string{w.phone.URL, "topic-of-mine", "/ping", "127.0.0.1"} {
		lacks(w.t, strings.ReplaceAll(said, "as http://127.0.0.1", ""), secret)
	}
	return said, err
}

// rings runs it, and requires one message with these lines, or none.
func (w *watchedFile) rings(lines ...string) (last ring) {
	w.t.Helper()
	said, err := w.run()
	must(w.t, err)
	rings, pings := w.phone.taken()
	failIf(w.t, pings != 1, "%d pings: %s", pings, said)
	if len(lines) == 0 {
		failIf(w.t, len(rings) > 0, "it rings: %+v", rings)
		return last
	}
	failIf(w.t, len(rings) != 1, "rings %d times: %s", len(rings), said)
	if got := strings.Split(rings[0].text, "\n"); !slices.Equal(got, lines) {
		w.t.Fatalf("%q, want %q", got, lines)
	}
	return rings[0]
}

const anAddress = "ntfy=PHONE/topic-of-mine\ntoken=tk_mine\n# a comment\n\nping=PHONE/ping\n"

func TestWatch_tellsEachTroubleOnceAgainWhenWorseAndOnceWhenOver(t *testing.T) {
	t.Parallel()
	w := newWatched(t, anAddress)
	const down, backup = "the service is not running: start it",
		"there was no backup yet: run 'widgetd backup FILE', best each day"
	first := w.rings("new: "+down, "new: "+backup)
	failIf(t, !strings.HasPrefix(first.title, "widgetd on ") ||
		!strings.HasSuffix(first.title, ": 2 new, 0 worse, 0 over") ||
		first.priority != "5" || first.tags != "rotating_light" || first.bearer != "Bearer tk_mine", "%+v", first)
	for range 3 {
		w.rings()
	}
	info, err := os.Stat(toldPath(w.env["WIDGETD_DB"]))
	must(t, err)
	failIf(t, info.Mode() != 0o600, "what was told has mode %v", info.Mode())

	// What is over is told once it stays so.
	w.do("backup", filepath.Join(w.dir, "copy.db"))
	for range 5 {
		w.rings()
	}
	over := w.rings("over: " + backup)
	failIf(t, over.priority != "3" || over.tags != "white_check_mark", "%+v", over)
	w.rings()

	// What comes and goes is told once.
	forget := func() {
		w.change(func(t *tx) error {
			_, err := t.try(`DELETE FROM events WHERE type = 'backup.written'`)
			return err
		})
	}
	forget()
	w.rings("new: " + backup)
	for i := range 3 {
		w.do("backup", filepath.Join(w.dir, fmt.Sprint("again", i)))
		w.rings()
		w.rings()
		forget()
		w.rings()
	}
}

// troublesOfKind are so many of a kind that is the program's or, if it has none of that name, is made up.
func troublesOfKind(kind string, urgency urgency, n int) foundTrouble {
	return foundTrouble{&trouble{kind: kind, urgency: urgency, one: "1 " + kind, many: "$n " + kind},
		occurrence{Count: n}}
}

// A watchedMinute is what is found in a minute, and what is then told, as "new 1, worse 0, over 0"; "": nothing.
func (w *watchState) minute(now time.Time, found ...foundTrouble) (told string) {
	m := w.compare(found, now)
	if len(m.lines) == 0 || !w.maySend(&m, now) {
		return ""
	}
	w.tell(&m, now)
	return strings.Join(m.lines, "; ")
}

func TestWatch_tellsWhatIsTwiceAsMuchAsWorse(t *testing.T) {
	t.Parallel()
	w, now := &watchState{Told: map[string]reportedTrouble{}}, time.Now()
	for _, c := range []struct {
		n    int
		want string
	}{{3, "new: 3 payments"}, {3, ""}, {5, ""}, {6, "worse: 6 payments"}, {11, ""}, {2, ""},
		{12, "worse: 12 payments"}} {
		now = now.Add(time.Minute)
		equal(t, fmt.Sprint(c.n), w.minute(now, troublesOfKind("payments", sameDay, c.n)), c.want)
	}
}

// Against a storm: troubles that come and go, or new ones each minute. What rings does so within its minute all the
// same, and what is over is no reason to hold anything back.
func TestWatch_sendsADigestInPlaceOfAStormAndRingsAtOnce(t *testing.T) {
	t.Parallel()
	w, now, sent, named := &watchState{Told: map[string]reportedTrouble{}}, time.Now(), 0, 0
	found := []foundTrouble{}
	for minute := range 180 {
		now = now.Add(time.Minute)
		found = append(found, troublesOfKind(fmt.Sprint("trouble ", minute), sameDay, 1))
		if told := w.minute(now, found...); told != "" {
			sent, named = sent+1, named+strings.Count(told, "new: ")
		}
	}
	failIf(t, sent > 30 || sent < 10 || named < 165, "%d messages in three hours, about %d troubles", sent, named)
	w.Last = now
	found = append([]foundTrouble{troublesOfKind("outage", rings, 1)}, found...)
	told := w.minute(now.Add(time.Second), found...)
	failIf(t, !strings.HasPrefix(told, "new: 1 outage"), "an outage does not ring in a storm: %q", told)

	// Twelve troubles that come and go are twelve messages that say they are over, and the next one is told at once.
	w = &watchState{Told: map[string]reportedTrouble{}}
	for i := range 12 {
		gone := now.Add(time.Duration(i+1)*time.Minute - watchOver)
		w.Told[fmt.Sprint(i)] = reportedTrouble{Text: "a trouble", Gone: gone}
	}
	for i := range 12 {
		now = now.Add(time.Minute)
		failIf(t, !strings.HasPrefix(w.minute(now), "over: a trouble"), "in minute %d nothing is over", i)
	}
	equal(t, "after what is over", w.minute(now.Add(time.Minute), troublesOfKind("payments", sameDay, 1)),
		"new: 1 payments")
}

func TestWatch_hasWhatRingsFirstThenMoneyThenAge(t *testing.T) {
	t.Parallel()
	now := newStamp(time.Now())
	found := []foundTrouble{}
	for i, f := range []struct {
		urgency urgency
		money   bool
		since   stamp
	}{{sameDay, false, now}, {sameDay, true, stamp{}}, {sameDay, true, now}, {sameDay, true, now.after(-days(1))},
		{whenSeen, true, now.after(-days(9))}, {rings, false, stamp{}}} {
		found = append(found, foundTrouble{&trouble{kind: fmt.Sprint(i), urgency: f.urgency, money: f.money},
			occurrence{Count: 1, Since: f.since}})
	}
	sort.SliceStable(found, func(i, j int) bool { return compareTroubles(&found[i], &found[j]) < 0 })
	order := ""
	for _, f := range found {
		order += f.kind
	}
	equal(t, "the order", order, "532104")
}

func TestWatch_boundsAMessageWhateverHappens(t *testing.T) {
	t.Parallel()
	p := newTelephone(t)
	m := watchMessage{}
	for i := range 1000 {
		m.over = append(m.over, fmt.Sprint(i))
		m.lines = append(m.lines, strings.Repeat("ä", 1000))
	}
	must(t, (&watchTarget{ntfy: p.URL + "/topic-of-mine"}).send(t.Context(), &m))
	rings, _ := p.taken()
	failIf(t, len(rings) != 1 || len(rings[0].text) > 3000 || !strings.HasSuffix(rings[0].text,
		"\nand 992 more: widgetd status"), "%d bytes: %.100q", len(rings[0].text), rings)
}

// Against a tenant's texts in the message: names of accounts, what rows hold, errors, paths.
func TestWatch_tellsNothingThatAnybodyElseHasWritten(t *testing.T) {
	t.Parallel()
	w := newWatched(t, anAddress)
	w.do("account", "add", "EVIL Bistro")
	w.do("license", "add", "-account", w.account, "-product", "EVIL", "-customer", "EVIL Guest", "-expires", "3d")
	w.do("token", "issue", "-account", w.account, "-scope", "stats:read", "-ttl", "90d", "-client-id", "EVIL")
	w.change(func(t *tx) error {
		_, err := t.try(`UPDATE tokens SET expires_at = ?, created_at = ?`, t.now.after(days(3)),
			t.now.after(-days(27)))
		return err
	})
	w.run()
	rings, _ := w.phone.taken()
	failIf(t, len(rings) != 1, "%v", rings)
	contains(t, rings[0].text, "1 token ends within 14 days")
	lacks(t, rings[0].text+rings[0].title, "EVIL", w.account, w.dir)
}

// Against a state that somebody has damaged, too: what was posted is remembered.
func TestWatch_worksWhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	w := newWatched(t, anAddress)
	w.do("backup", filepath.Join(w.dir, "copy.db"))
	w.rings("new: the service is not running: start it")
	must(t, os.Truncate(w.env["WIDGETD_DB"], 100))
	w.rings("new: can't be read, so run 'widgetd check': …")
	must(t, os.Remove(w.env["WIDGETD_DB"]))
	w.rings()
	// What was told is lost with its file, and told anew, once.
	for _, state := range []string{`nonsense`, `{"told":null}`, `null`, `{"told":{"x":null},"sent":null}`} {
		writeFile(t, toldPath(w.env["WIDGETD_DB"]), state)
		w.rings("new: the service is not running: start it", "new: can't be read, so run 'widgetd check': …")
		w.rings()
	}
}

// Against an address that holds back, refuses, or leads elsewhere: what could not be told is told later, and silence
// tells that something is wrong.
func TestWatch_keepsWhatCouldNotBeTold(t *testing.T) {
	t.Parallel()
	w := newWatched(t, anAddress)
	elsewhere := newTelephone(t)
	for why, answer := range map[string]http.HandlerFunc{
		"it answers with the status 500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"it answers with the status 307": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/topic-of-mine", http.StatusTemporaryRedirect)
		},
		"timeout":    func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, // it holds back
		"connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		w.phone.answer = answer
		if w.limit = 0; why == "timeout" {
			w.limit = 300 * time.Millisecond
		}
		said, err := w.run()
		failIf(t, err == nil || !strings.Contains(said, why), "%s: %s", why, said)
		if rings, pings := w.phone.taken(); len(rings)+pings > 0 {
			t.Errorf("%s: %v, %d pings", why, rings, pings)
		}
	}
	if rings, _ := elsewhere.taken(); len(rings) > 0 {
		t.Error("a redirect is followed")
	}
	equal(t, "how long a call may take", (&watchTarget{}).timeout(), 10*time.Second)
	// An answer without an end is not read to its end, and one that breaks off is one.
	w.limit = 0
	for _, length := range []string{"10485760", "100"} {
		must(t, os.RemoveAll(toldPath(w.env["WIDGETD_DB"])))
		w.phone.answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", length)
			if length == "100" {
				io.WriteString(w, "{")
				return
			}
			w.Write(make([]byte, 10<<20))
		}
		_, err := w.run()
		must(t, err)
		w.phone.answer = nil
		w.phone.taken()
		w.rings()
	}
}

func TestWatch_takesHTTPSOrThisMachineOnly(t *testing.T) {
	t.Parallel()
	w := newWatched(t, anAddress)
	for lines, want := range map[string]string{
		"ntfy=http://ntfy.example/topic-of-mine":        "must begin with https://",
		"ntfy=http://localhost/topic-of-mine":           "must begin with https://",
		"ntfy=topic-of-mine":                            "must begin with https://",
		"ntfy=https://user:topic-of-mine@ntfy.example/": "must begin with https://",
		"":                            "must have one line",
		"ping=https://127.0.0.1/ping": "must have one line",
		"ntfy=https://a.example/topic-of-mine\nwebhook=https://127.0.0.1/x":       "must have one line",
		"ntfy=https://a.example/topic-of-mine\ntopic-of-mine=https://a.example/b": "line 2 is none of ntfy=…, ",
		"ntfy=https://a.example/topic-of-mine\nntfy=https://127.0.0.1/x":          "ntfy appears twice",
		"ntfy=https://a.example/" + strings.Repeat("x", maxSecretsFile):           "more than 16384 bytes",
		"webhook=" + w.phone.URL + "/topic-of-mine\nping=http://a.b/":             "ping= must begin with https://",
	} {
		w.addresses(lines)
		said, err := w.run()
		failIf(t, err == nil || !strings.Contains(said, want), "%q: %s, want %s", lines, said, want)
	}
	w.addresses("webhook=" + w.phone.URL + "/topic-of-mine\nping=" + w.phone.URL + "/topic-of-mine?not")
	w.phone.answer = func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			w.WriteHeader(404)
		}
	}
	said, err := w.run()
	failIf(t, err == nil, "%s", said)
	contains(t, said, "the address that notices silence could not be called: it answers with")
	must(t, os.Chmod(watchPath(w.env["WIDGETD_DB"]), 0o640))
	said, err = w.run()
	failIf(t, err == nil || !strings.Contains(said, "other users can read"), "%s", said)
	must(t, os.Remove(watchPath(w.env["WIDGETD_DB"])))
	said, err = w.run()
	failIf(t, err == nil || !strings.Contains(said, "write the address into the file first"), "%s", said)
}

func TestWatch_postsJSONToAWebhook(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "webhook=PHONE/topic-of-mine\nping=PHONE/ping\n")
	_, err := w.run()
	must(t, err)
	rings, _ := w.phone.taken()
	failIf(t, len(rings) != 1 || rings[0].kind != "application/json", "%+v", rings)
	var body struct {
		Title, Message string
		Priority       int
		Tags           []string
	}
	must(t, json.Unmarshal([]byte(rings[0].text), &body))
	failIf(t, body.Priority != 5 || !slices.Equal(body.Tags, []string{"rotating_light"}) ||
		!strings.HasPrefix(body.Title, "widgetd on ") || !strings.HasPrefix(body.Message, "new: the service"),
		"%+v", body)
}

func TestWatch_tellsOfAUnitThatHasFailedEachTimeThatItFails(t *testing.T) {
	t.Parallel()
	w := newWatched(t, anAddress)
	w.run()
	w.phone.taken()
	const failed = "new: the unit widgetd-backup.service has failed: journalctl -u widgetd-backup.service"
	for range 2 {
		_, err := w.run("-unit", "widgetd-backup.service")
		must(t, err)
		rings, _ := w.phone.taken()
		failIf(t, len(rings) != 1 || rings[0].priority != "5" || rings[0].text != failed, "%v", rings)
	}
	seenTroubles.Store("unit_failed", true)
	for range 5 {
		w.rings()
	}
	w.rings("over: " + strings.TrimPrefix(failed, "new: "))
	list := "widgetd-page.service loaded failed failed A page\nwidgetd-failed@x.service loaded failed failed x\n\n"
	equal(t, "what systemctl lists", unitsIn(list+"litestream.service loaded failed", []string{"litestream.service"}),
		[]string{"widgetd-page.service"})
}

// Against a disk that is full or read-only: what was told is known from the other place, and where there is none, all
// is told once an hour, by the clock alone.
func TestWatch_doesNotRingEachMinuteWhereItCanWriteNothing(t *testing.T) {
	t.Parallel()
	w := newWatched(t, anAddress)
	told := toldPath(w.env["WIDGETD_DB"])
	must(t, os.MkdirAll(filepath.Join(told, "full"), 0o700)) // no file can take its place
	w.env["RUNTIME_DIRECTORY"] = t.TempDir()
	const down, backup = "new: the service is not running: start it",
		"new: there was no backup yet: run 'widgetd backup FILE', best each day"
	w.rings(down, backup)
	w.rings()
	w.rings()

	// The later one counts.
	must(t, os.RemoveAll(told))
	w.do("backup", filepath.Join(w.dir, "copy.db"))
	for range 5 {
		w.rings()
	}
	w.rings("over: " + strings.TrimPrefix(backup, "new: "))
	other := filepath.Join(w.env["RUNTIME_DIRECTORY"], filepath.Base(told))
	writeFile(t, other, `{"told":{},"at":"2000-01-01T00:00:00Z"}`)
	w.rings()

	must(t, os.RemoveAll(told))
	must(t, os.MkdirAll(filepath.Join(told, "full"), 0o700))
	w.env["RUNTIME_DIRECTORY"] = "/nonexistent"
	w.now = w.now.Truncate(time.Hour).Add(time.Hour - time.Minute) // it runs a minute later
	for range 2 {
		w.rings(down)
		for _, minute := range []int{1, 2, 30, 59} {
			w.now = w.now.Truncate(time.Hour).Add(time.Duration(minute-1) * time.Minute)
			said, err := w.run()
			rings, pings := w.phone.taken()
			failIf(t, err == nil || len(rings) > 0 || pings > 0, "between: %v, %d pings: %s", rings, pings, said)
		}
	}
}
