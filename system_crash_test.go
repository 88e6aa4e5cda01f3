package main

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A patron is one client: it has one request on its way at a time, and remembers what it was told.
type patron interface {
	step(link) error      // one request; an error: no answer came, and a request may be open
	open() bool           // an answer is missing
	compare(*store) error // holds the file against what it was told
	ask(link) error       // asks again for the answer that is missing
}

var errUntrue = errors.New("untrue")

func untrue(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errUntrue}, args...)...)
}

// withKey returns headers with an Idempotency-Key; "": without one.
func withKey(key string, headers ...string) []string {
	if key == "" {
		return headers
	}
	return append(headers, "Idempotency-Key: "+key)
}

// A leadPatron posts leads, with or without an Idempotency-Key.
type leadPatron struct {
	name    string
	keyed   bool
	n       int
	missing string            // the address whose answer did not come
	ids     map[string]string // of the acknowledged, by address
	fresh   []string          // acknowledged, and not yet seen in the file
}

func (p *leadPatron) post(l link, email string) error {
	key := ""
	if p.keyed {
		key = email
	}
	p.missing = email
	a, err := l.post("/widget/leads", `{"type":"newsletter","email":"`+email+`"}`, withKey(key)...)
	if err != nil {
		return err
	}
	if a.status != 200 || a.ID == "" {
		return untrue("lead %s: %+v", email, a)
	}
	if id, known := p.ids[email]; known && (id != a.ID || p.keyed && !a.replayed) {
		return untrue("lead %s was %s: %+v", email, id, a)
	}
	p.missing, p.ids[email], p.fresh = "", a.ID, append(p.fresh, email)
	return nil
}

func (p *leadPatron) step(l link) error {
	p.n++
	return p.post(l, fmt.Sprintf("%s-%d@example.com", p.name, p.n))
}

func (p *leadPatron) open() bool { return p.missing != "" }

// ask posts the lead that was not answered again, and the last one that was.
func (p *leadPatron) ask(l link) error {
	again := []string{p.missing}
	if len(p.fresh) > 0 {
		again = append(again, p.fresh[len(p.fresh)-1])
	}
	p.fresh = nil
	for _, email := range again {
		if email == "" {
			continue
		}
		if err := p.post(l, email); err != nil {
			return err
		}
	}
	return nil
}

func (p *leadPatron) compare(st *store) error {
	for _, email := range append([]string{p.missing}, p.fresh...) {
		var n int
		var id string
		err := st.one(`SELECT count(*), coalesce(min(id), '') FROM leads WHERE email = ?`, []any{email}, &n, &id)
		if err != nil {
			return err
		}
		switch want := p.ids[email]; {
		case email == p.missing && n == 1 && !p.keyed: // it was kept, and nobody was told
			p.missing, p.ids[email] = "", id
		case email == p.missing && n > 1, email != p.missing && (n != 1 || id != want):
			return untrue("%q was acknowledged as %q; in the file %d times, as %q", email, want, n, id)
		}
	}
	return nil
}

// A clickPatron reports clicks on a widget of its own.
type clickPatron struct {
	widget  string
	keyed   bool
	n       int // the number of the last report
	missing int // the number of the report whose answer did not come; 0: none
	clicks  int // acknowledged
}

func (p *clickPatron) report(l link, n int) error {
	key := ""
	if p.keyed {
		key = fmt.Sprint(p.widget, "-", n)
	}
	repeated := n < p.n
	p.missing = n
	a, err := l.post("/widget/events", `{"widget":"`+p.widget+`","events":[{"type":"click","item":"soup"}]}`,
		withKey(key, "Origin: "+siteOrigin)...)
	if err != nil {
		return err
	}
	if a.status != 204 || repeated && !a.replayed {
		return untrue("click %d: %+v", n, a)
	}
	p.missing = 0
	if !repeated {
		p.clicks++
	}
	return nil
}

func (p *clickPatron) step(l link) error {
	p.n++
	return p.report(l, p.n)
}

func (p *clickPatron) open() bool { return p.missing != 0 }

// ask reports the click that was not answered again, and one that was: with a key
// only, for without one each report counts.
func (p *clickPatron) ask(l link) error {
	if !p.keyed {
		return nil
	}
	if p.missing != 0 {
		if err := p.report(l, p.missing); err != nil {
			return err
		}
	}
	if p.n < 2 {
		return nil
	}
	return p.report(l, p.n-1)
}

func (p *clickPatron) compare(st *store) error {
	var clicks, ofItems int
	err := st.one(`SELECT (SELECT coalesce(sum(clicks), 0) FROM widget_counts WHERE widget_id = ?1),
		(SELECT coalesce(sum(clicks), 0) FROM item_counts WHERE widget_id = ?1)`, []any{p.widget}, &clicks, &ofItems)
	if err != nil {
		return err
	}
	most := p.clicks
	if p.missing != 0 {
		most++
	}
	if clicks < p.clicks || clicks > most || clicks != ofItems {
		return untrue("%d clicks were acknowledged and at most %d sent; the widget has %d, its items %d",
			p.clicks, most, clicks, ofItems)
	}
	if !p.keyed {
		p.missing, p.clicks = 0, clicks
	}
	return nil
}

// A seatPatron is a device that takes a seat of a licence which has fewer seats
// than devices, is verified, and gives the seat back.
type seatPatron struct {
	license, key, fingerprint string

	turn    int
	path    string // of the request whose answer did not come; "": none
	idemKey string // of the last activation
	active  bool   // as last told, or found in the file after an answer that did not come
	taken   int    // how often it took a seat
	token   string
}

const activatePath, deactivatePath = "/widget/license/activate", "/widget/license/deactivate"

func (p *seatPatron) send(l link) error {
	key := ""
	if p.path == activatePath {
		key = p.idemKey
	}
	a, err := l.post(p.path, activateBody(p.key, p.fingerprint), withKey(key)...)
	switch {
	case err != nil:
		return err
	case p.path == activatePath && a.status == 200 && (a.replayed || a.Code == "already_active") == p.active:
		if !p.active {
			p.taken++
		}
		p.token, p.active = a.Token, true
	case p.path == activatePath && a.status == 409 && a.Code == "seat_limit_reached" && !p.active:
	case p.path == deactivatePath && a.status == 200 && a.Released == p.active:
		p.active = false
	default:
		return untrue("%s of %s, which was active: %v: %+v", p.path, p.fingerprint, p.active, a)
	}
	p.path = ""
	return nil
}

// verify shows the token of the last lease: it must be known, and the answer true.
func (p *seatPatron) verify(l link) error {
	if p.token == "" {
		return nil
	}
	a, err := l.post("/widget/license/verify", `{}`, bearer(p.token))
	want := map[bool]string{true: "valid", false: "device_released"}[p.active]
	if err == nil && (a.status != 200 || a.Valid != p.active || a.Code != want) {
		return untrue("verify of %s, which was active: %v: %+v", p.fingerprint, p.active, a)
	}
	return err
}

func (p *seatPatron) step(l link) error {
	p.turn++
	switch {
	case p.turn%2 == 0:
		return p.verify(l)
	case p.active:
		p.path = deactivatePath
		return p.send(l)
	}
	p.path, p.idemKey = activatePath, ""
	if p.turn%4 == 1 {
		p.idemKey = fmt.Sprint(p.fingerprint, "-", p.turn)
	}
	return p.send(l)
}

func (p *seatPatron) open() bool { return p.path != "" }

func (p *seatPatron) ask(l link) error {
	if p.path != "" {
		if err := p.send(l); err != nil {
			return err
		}
	}
	return p.verify(l)
}

func (p *seatPatron) compare(st *store) error {
	hash := fingerprintHash(p.fingerprint)
	d, err := orNil(st.deviceByFingerprint(p.license, hash[:]))
	if err != nil {
		return err
	}
	active, taken, events, released := false, 0, 0, 0
	if d != nil {
		active, taken = d.State == deviceActive, int(d.Activations)
		err := st.one(`SELECT count(*) FILTER (WHERE type IN ('device.activated', 'device.reactivated')),
			count(*) FILTER (WHERE type = 'device.released') FROM events WHERE json_extract(data, '$.device_id') = ?`,
			[]any{d.ID}, &events, &released)
		if err != nil {
			return err
		}
	}
	asTold := active == p.active && taken == p.taken
	done := p.path == activatePath && active && !p.active && taken == p.taken+1 ||
		p.path == deactivatePath && !active && p.active && taken == p.taken
	if held := taken - released; !asTold && !done || events != taken || held != map[bool]int{true: 1}[active] {
		return untrue("%s: told active %v after %d activations, %q open; in the file active %v after %d, "+
			"with %d events and %d of release",
			p.fingerprint, p.active, p.taken, p.path, active, taken, events, released)
	}
	p.active, p.taken = active, taken
	return nil
}

// newPatrons are clients of every kind, and the widgets and the licence they need.
func newPatrons(o *operator, seats int) (all []patron) {
	o.do("account", "set-rate", o.account, "1000000")
	for i := range 4 {
		widget := o.object("widget", "add", "-account", o.account, fmt.Sprint("Widget ", i))["id"].(string)
		all = append(all, &leadPatron{name: fmt.Sprint("c", i), keyed: i%2 == 1, ids: map[string]string{}},
			&clickPatron{widget: widget, keyed: i%2 == 1})
	}
	added := o.object("license", "add", "-account", o.account, "-product", "kds", "-max-devices", fmt.Sprint(seats))
	for i := range 2 * seats {
		all = append(all, &seatPatron{license: added["id"].(string), key: added["key"].(string),
			fingerprint: fmt.Sprint("device-", i)})
	}
	return all
}

// compareAll holds the file against what all were told, and against what must hold whatever they were told.
func compareAll(o *operator, all []patron, seats int) {
	o.t.Helper()
	o.store(func(st *store) {
		for _, p := range all {
			if err := p.compare(st); err != nil {
				o.t.Error(err)
			}
		}
		var most, leads, created, clones int
		err := st.one(`SELECT (SELECT coalesce(max(seats_used), 0) FROM v_licenses), (SELECT count(*) FROM leads),
			(SELECT count(DISTINCT subject_id) FROM events WHERE type = 'lead.created'),
			(SELECT count(*) FROM events WHERE type = 'device.clone_suspected')`, nil, &most, &leads, &created, &clones)
		if err != nil || most > seats || leads != created || clones != 0 {
			o.t.Errorf("%d devices on %d seats, %d leads with %d events, %d suspected clones (%v)",
				most, seats, leads, created, clones, err)
		}
	})
}

// askAll has every patron ask again for the answer that it lacks.
func askAll(o *operator, p *process, all []patron) {
	o.t.Helper()
	client := newClient(o.t)
	defer client.CloseIdleConnections()
	var asked sync.WaitGroup
	for _, each := range all {
		asked.Go(func() {
			if err := each.ask(link{client, p.base}); err != nil {
				o.t.Errorf("asked again: %v", err)
			}
		})
	}
	asked.Wait()
}

// loadUntil has every patron send until the service answers no more, and returns how often it did. kill is called
// after some answers.
func loadUntil(t *testing.T, p *process, all []patron, answers int64, kill func()) int64 {
	var load sync.WaitGroup
	var got atomic.Int64
	killing := make(chan struct{})
	enough := sync.OnceFunc(func() { close(killing) })
	for _, each := range all {
		load.Go(func() {
			l := link{newClient(t), p.base}
			defer l.CloseIdleConnections()
			for {
				if err := each.step(l); err != nil {
					if errors.Is(err, errUntrue) {
						t.Error(err)
					}
					return
				}
				if got.Add(1) == answers {
					enough()
				}
			}
		})
	}
	go func() { load.Wait(); enough() }()
	<-killing
	kill()
	load.Wait()
	return got.Load()
}

// killWhileStarting starts the service and kills it after a moment, before it can say that it serves.
func killWhileStarting(o *operator, moment time.Duration) {
	o.t.Helper()
	cmd := exec.Command(builtProgram(o.t), "serve", "-addr", "127.0.0.1:0",
		"-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"])
	must(o.t, cmd.Start())
	time.Sleep(moment)
	cmd.Process.Kill()
	cmd.Wait()
}

// revive starts the service. Its first answer, once it says that it serves, must be a health of 200.
func revive(o *operator) *process {
	o.t.Helper()
	p := serveProcess(o.t, o)
	client := newClient(o.t)
	client.Timeout = time.Minute
	defer client.CloseIdleConnections()
	res, err := client.Get(p.base + "/widget/health")
	if err != nil || res.StatusCode != 200 {
		o.t.Fatalf("health after a start: %v %v", res, err)
	}
	res.Body.Close()
	return p
}

func TestCrash_atAnyMomentLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	const seats = 3
	o := newOperator(t)
	all := newPatrons(o, seats)
	open, answers, kills, choices := 0, int64(0), size(4, 30), random(t, 0)
	upTo := func(most time.Duration) time.Duration { return time.Duration(choices.Int64N(int64(most))) }
	for n := range kills {
		p := revive(o)
		compareAll(o, all, seats)
		askAll(o, p, all)
		compareAll(o, all, seats)
		answers += loadUntil(t, p, all, 20+choices.Int64N(100), func() {
			if n%2 == 1 {
				p.cmd.Process.Signal(syscall.SIGTERM)
				time.Sleep(upTo(200 * time.Millisecond)) // it may have ended by then
			}
			p.cmd.Process.Kill()
			<-p.done
		})
		if n%4 == 2 {
			killWhileStarting(o, upTo(40*time.Millisecond))
		}
		for _, each := range all {
			if each.open() {
				open++
			}
		}
		if t.Failed() {
			t.Fatalf("after kill %d", n)
		}
	}
	compareEverything(o, all, seats)
	t.Logf("%d kills, %d requests answered, %d left open", kills, answers, open)
	if answers < 10*int64(kills) || open == 0 {
		t.Error("the kills met no load")
	}
}

// compareEverything asks for the last open answers, stops the service, and reads the whole file.
func compareEverything(o *operator, all []patron, seats int) {
	o.t.Helper()
	p := revive(o)
	compareAll(o, all, seats)
	askAll(o, p, all)
	p.stopCleanly()
	told := 0
	for _, each := range all {
		if leads, ok := each.(*leadPatron); ok {
			leads.fresh = slices.Collect(maps.Keys(leads.ids))
			told += len(leads.ids)
		}
	}
	compareAll(o, all, seats)
	o.store(func(st *store) {
		var leads int
		if err := st.one(`SELECT count(*) FROM leads`, nil, &leads); err != nil || leads != told {
			o.t.Errorf("%d leads in the file, %d acknowledged (%v)", leads, told, err)
		}
	})
	if report := o.object("check"); report["ok"] != true {
		o.t.Errorf("check: %v", report)
	}
}

func TestCrash_findsEveryAcknowledgedWriteSynced(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	widget := o.object("widget", "add", "-account", o.account, "Lunch")["id"].(string)
	key := o.object("license", "add", "-account", o.account, "-product", "kds")["key"].(string)
	p, trace := serveTraced(t, o)
	l := link{newClient(t), p.base}
	device := func(n int) string { return activateBody(key, fmt.Sprint("device-", n)) }
	lead := func(n int) string { return fmt.Sprintf(`{"type":"newsletter","email":"u%d@example.com"}`, n) }
	events := func(int) string {
		return `{"widget":"` + widget + `","events":[{"type":"view"},{"type":"order","item":"soup"}]}`
	}
	const writes = 20 // of each kind
	for _, kind := range []struct {
		path   string
		body   func(n int) string
		status int
	}{
		{"/widget/leads", lead, 200},
		{"/widget/license/activate", device, 200},
		{"/widget/events", events, 204},
		{"/widget/license/deactivate", device, 200},
	} {
		for n := range writes {
			before := trace.syncs()
			a, err := l.post(kind.path, kind.body(n), "Origin: "+siteOrigin)
			if err != nil || a.status != kind.status {
				t.Fatalf("%s: %+v %v", kind.path, a, err)
			}
			if trace.syncs() == before {
				t.Errorf("%s: write %d was acknowledged and not synced", kind.path, n)
			}
		}
	}
	p.stopCleanly()
	t.Logf("%d writes of each kind, %d syncs", writes, trace.syncs())
}
