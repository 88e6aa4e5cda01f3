package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

const aLead = `{"type":"newsletter","email":"ada@example.com","source":"footer","page":"/menu"}`

func TestLead_isKeptAndAnswersWithItsID(t *testing.T) {
	t.Parallel()
	s := newService(t)
	a := s.post("/widget/leads", `{"type":"newsletter","email":"Ada@Example.COM","source":"footer","page":"/menu?utm=1#top","unknown":1}`, "Origin: "+siteOrigin).is(200)
	if want := `{"ok":true,"id":"` + a.text("id") + "\"}\n"; a.body != want {
		t.Fatalf("body %q, want %q", a.body, want)
	}
	if !validID("lead", a.text("id")) {
		t.Fatalf("id %q", a.text("id"))
	}
	page, err := s.store.leads(leadFilter{owner: ownedBy(s.account)}, "", 10)
	s.check(err)
	rows := page.rows
	if len(rows) != 1 || rows[0].Email != "Ada@example.com" || *rows[0].Page != "/menu" || *rows[0].Source != "footer" || rows[0].ID != a.text("id") {
		t.Fatalf("rows %+v", rows)
	}
}

func TestLead_belongsToTheOwnerOfItsOrigin(t *testing.T) {
	t.Parallel()
	s := newService(t)
	partner := s.addAccount("partner")
	s.change(func(t *tx) error { return t.addOrigin(partner, "https://partner.example") })
	s.post("/widget/leads", aLead, "Origin: https://partner.example").is(200)
	s.post("/widget/leads", aLead).is(200)
	for _, account := range []string{partner, s.account} {
		if n := s.count(`SELECT count(*) FROM leads WHERE account_id = ?`, account); n != 1 {
			t.Errorf("%s has %d leads", account, n)
		}
		if n := s.count(`SELECT count(*) FROM events WHERE account_id = ? AND type = 'lead.created' AND subject_id LIKE 'lead\_%' ESCAPE '\'`, account); n != 1 {
			t.Errorf("%s has %d events", account, n)
		}
	}
	if n := s.count(`SELECT count(*) FROM events WHERE data LIKE '%ada%' OR actor LIKE '%ada%'`); n != 0 {
		t.Error("an event carries the address")
	}
}

func TestLead_fromAnUnlistedOriginIsRefusedAndNotWritten(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.change(func(t *tx) error { return t.addOrigin(s.account, "https://gone.example") })
	closed := s.addAccount("closed")
	s.change(func(t *tx) error {
		if err := t.addOrigin(closed, "https://closed.example"); err != nil {
			return err
		}
		return t.closeAccount(closed)
	})
	s.change(func(t *tx) error { return t.removeOrigin("https://gone.example") })
	before := s.dump()
	for _, origin := range []string{"https://other.example", "null", "https://gone.example", "https://closed.example", "http://www.example.com", "https://example.com", "https://www.example.com.evil.example", ""} {
		s.post("/widget/leads", aLead, "Origin: "+origin).is(403, "origin_not_allowed").has("Access-Control-Allow-Origin: ")
	}
	s.unchanged(before)
}

func TestLead_isNullInWhatItOmits(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", `{"type":"newsletter","email":"ada@example.com","source":""}`).is(200)
	s.post("/widget/leads", `{"type":"newsletter","email":"bob@example.com","page":"/?x"}`).is(200)
	s.post("/widget/leads", `{"type":"newsletter","email":"eve@example.com","page":"/#x?y"}`).is(200)
	if n := s.count(`SELECT count(*) FROM leads WHERE source IS NULL AND (page IS NULL OR page = '/')`); n != 3 {
		t.Fatal(s.dump())
	}
}

func TestLead_sentAgainWithinTenMinutesIsOneLead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id := s.post("/widget/leads", aLead).is(200).text("id")
		time.Sleep(5 * time.Minute)
		if again := s.post("/widget/leads", aLead).is(200).text("id"); again != id {
			t.Fatalf("another id after five minutes: %s, %s", id, again)
		}
		time.Sleep(5*time.Minute - time.Second)
		if again := s.post("/widget/leads", aLead).is(200).text("id"); again != id {
			t.Fatalf("another id within ten minutes: %s, %s", id, again)
		}
		if again := s.post("/widget/leads", strings.Replace(aLead, "example.com", "EXAMPLE.com", 1)).is(200).text("id"); again != id {
			t.Fatal("the domain's case makes another lead")
		}
		capital := strings.Replace(aLead, "ada@", "Ada@", 1) // the part before the @ is as it was sent
		if other := s.post("/widget/leads", capital).is(200).text("id"); other == id || s.post("/widget/leads", capital).is(200).text("id") != other {
			t.Fatal("a capital is not a lead of its own, once")
		}
		for _, other := range []string{
			strings.Replace(aLead, "newsletter", "demo", 1), strings.Replace(aLead, "ada@", "bob@", 1), strings.Replace(aLead, "footer", "header", 1),
			strings.Replace(aLead, "/menu", "/", 1), `{"type":"newsletter","email":"ada@example.com"}`, `{"type":"newsletter","email":"ada@example.com","source":"footer"}`,
		} {
			if again := s.post("/widget/leads", other).is(200).text("id"); again == id {
				t.Errorf("%s is taken for another lead", other)
			}
		}
		if n := s.count(`SELECT count(*) FROM leads`); n != 8 {
			t.Fatalf("%d leads", n)
		}
		if n := s.count(`SELECT count(*) FROM events WHERE type = 'lead.created'`); n != 8 {
			t.Fatalf("%d events", n)
		}
		time.Sleep(time.Second) // a repetition within the ten minutes has not prolonged them
		if again := s.post("/widget/leads", aLead).is(200).text("id"); again == id {
			t.Fatal("the same id after ten minutes")
		}
	})
}

func TestLead_whoRepeatsAnothersSubmissionLearnsOnlyOfTheLastTenMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		victims := s.post("/widget/leads", aLead).is(200).text("id")
		for minutes := 11; minutes < 24*60; minutes *= 3 {
			time.Sleep(time.Duration(minutes) * time.Minute)
			now := newID("lead", time.Now())
			if id := s.post("/widget/leads", aLead).is(200).text("id"); id == victims || id[:len("lead_")+9] != now[:len("lead_")+9] {
				t.Errorf("after %d minutes the answer is %s, which tells of an earlier time than %s", minutes, id, now)
			}
		}
	})
}

func TestLead_isFoundAgainOnceTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := &wallClock{}
		s := newService(t, func(of *storeOptions, _ *serverOptions) { of.now = clock.now })
		first := s.post("/widget/leads", aLead).is(200).text("id")
		clock.set(-time.Hour)
		second := s.post("/widget/leads", aLead).is(200).text("id")
		if second == first {
			t.Error("the lead of a later hour is taken for this one")
		}
		if again := s.post("/widget/leads", aLead).is(200).text("id"); again != second {
			t.Errorf("a repetition answers %s, want %s", again, second)
		}
	})
}

func TestLead_ofADoubleClickIsOneLead(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ids := make([]string, 16)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() { ids[i] = s.post("/widget/leads", aLead, "Origin: "+siteOrigin).text("id") })
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("ids %q", ids)
		}
	}
	if n := s.count(`SELECT count(*) FROM leads`); n != 1 {
		t.Fatalf("%d leads", n)
	}
}

func TestLead_inTheTrapForBotsLooksLikeSuccessAndIsNotKept(t *testing.T) {
	t.Parallel()
	s := newService(t)
	before := s.dump()
	a := s.post("/widget/leads", trapped(aLead), "Origin: "+siteOrigin).is(200)
	if a.body != `{"ok":true,"id":"`+a.text("id")+"\"}\n" || !validID("lead", a.text("id")) {
		t.Fatalf("body %s", a.body)
	}
	s.unchanged(before)
	if s.count(`SELECT count(*) FROM probes`) != 1 {
		t.Error("the answer did not wait for a commit, as that to a lead which is kept does")
	}
}

// trapped is the body of a lead with the trap for bots filled in.
func trapped(lead string) string {
	return strings.Replace(lead, "{", `{"website":"https://spam.example",`, 1)
}

// A bot that sends its submission again, in every way that there is, sees what the sender of a
// lead that is kept sees.
func TestLead_inTheTrapForBotsIsAnsweredAsOneThatIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, withoutAddressLimits)
		// story is what somebody sees of a submission and its repetitions: each answer with its
		// status, its headers, and which of the ids so far it has. An id that is new must be of now.
		story := func(change func(string) string) string {
			seen, ids := strings.Builder{}, []string{}
			send := func(body string, headers ...string) {
				a := s.post("/widget/leads", change(body), append(headers, "Origin: "+siteOrigin)...)
				for _, name := range slices.Sorted(maps.Keys(a.header)) {
					if name != "X-Request-Id" && name != "Date" {
						fmt.Fprintf(&seen, "%s: %s\n", name, a.header.Get(name))
					}
				}
				if a.status != 200 {
					fmt.Fprintf(&seen, "%d %s\n", a.status, a.text("code"))
					return
				}
				id := a.text("id")
				if !slices.Contains(ids, id) {
					ids = append(ids, id)
					if now := newID("lead", time.Now()); id[:len("lead_")+9] != now[:len("lead_")+9] {
						t.Errorf("a new id is %s, not of now as %s", id, now)
					}
				}
				fmt.Fprintf(&seen, "%d %s\n", a.status, strings.Replace(a.body, id, fmt.Sprint(slices.Index(ids, id)), 1))
			}
			other := strings.Replace(aLead, "footer", "header", 1)
			send(aLead)
			send(aLead)
			send(other)
			send(aLead, "Idempotency-Key: one")
			send(aLead, "Idempotency-Key: one")
			send(other, "Idempotency-Key: one")
			send(strings.Replace(aLead, "/menu", "menu", 1))
			time.Sleep(dedupeWindow - time.Second)
			send(aLead)
			time.Sleep(time.Second)
			send(aLead)
			send(aLead)
			send(aLead, "Idempotency-Key: one")
			return seen.String()
		}
		kept := story(func(body string) string { return body })
		time.Sleep(25 * time.Hour) // until every bucket is full again, and no Idempotency-Key is known
		leads := s.count(`SELECT count(*) FROM leads`)
		if got := story(trapped); got != kept {
			t.Errorf("a bot sees\n%s\nothers\n%s", got, kept)
		}
		if n := s.count(`SELECT count(*) FROM leads`); n != leads || leads != 3 {
			t.Errorf("%d leads before, %d after", leads, n)
		}
		if names := traces(t, s.dir, "spam.example"); len(names) > 0 {
			t.Errorf("what the bot sent is in %q", names)
		}
	})
}

func TestLead_inTheTrapForBotsTakesBoundedMemory(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var m trappedLeads
	ids := map[string]bool{}
	s.change(func(t *tx) error {
		for i := range maxTrappedLeads + 100 {
			id, err := m.pretend(t, lead{Email: "ada@example.com"}, fmt.Sprint(i))
			if err != nil {
				return err
			}
			ids[id] = true
		}
		return nil
	})
	if len(ids) != maxTrappedLeads+100 || len(m.ids) != maxTrappedLeads {
		t.Errorf("%d ids, of which %d are remembered", len(ids), len(m.ids))
	}
}

func TestLead_isListedNewestFirstPageByPageWhileMoreCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, withoutAddressLimits)
		token := "Authorization: Bearer " + s.token(s.account, scopeLeads)
		post := func(i int) string {
			time.Sleep(time.Second)
			return s.post("/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":"a%d@example.com"}`, i)).is(200).text("id")
		}
		ids := []string{}
		for i := range 7 {
			ids = append([]string{post(i)}, ids...)
		}
		var seen []string
		query, pages := "/leads?limit=3", 0
		for cursor := any("first"); cursor != nil; pages++ {
			a := s.get(query, token).is(200).json()
			for _, row := range a["data"].([]any) {
				seen = append(seen, row.(map[string]any)["id"].(string))
			}
			cursor = a["next_cursor"]
			query = fmt.Sprintf("/leads?limit=3&cursor=%v", cursor)
			post(100 + pages)
		}
		if pages != 3 || fmt.Sprint(seen) != fmt.Sprint(ids) {
			t.Fatalf("%d pages of %q, want %q", pages, seen, ids)
		}
		if n := len(s.get("/leads?limit=200", token).is(200).json()["data"].([]any)); n != 10 {
			t.Fatalf("%d leads", n)
		}
	})
}

func TestLead_listHasFiftyRowsUnlessAskedAndSaysWhenItEnds(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.change(func(t *tx) error {
		for i := range 51 {
			if _, err := t.addLead(lead{AccountID: s.account, Type: "demo", Email: fmt.Sprintf("a%d@example.com", i)}); err != nil {
				return err
			}
		}
		return nil
	})
	token := "Authorization: Bearer " + s.token(s.account, scopeLeads)
	a := s.get("/leads", token).is(200).json()
	if n := len(a["data"].([]any)); n != 50 || a["next_cursor"] == nil {
		t.Fatalf("%d rows, cursor %v", n, a["next_cursor"])
	}
	if a := s.get("/leads?limit=51", token).is(200).json(); len(a["data"].([]any)) != 51 || a["next_cursor"] != nil {
		t.Fatalf("%v", a)
	}
	other := "Authorization: Bearer " + s.token(s.addAccount("other"), scopeLeads)
	if a := s.get("/leads", other).is(200); a.body != "{\"data\":[],\"next_cursor\":null}\n" {
		t.Fatalf("another account sees %s", a.body)
	}
}

func TestLead_listedIsWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		token := "Authorization: Bearer " + s.token(s.account, scopeLeads)
		id := s.post("/widget/leads", `{"type":"newsletter","email":"ada@example.com","source":"footer"}`).is(200).text("id")
		want := `{"data":[{"id":"` + id + `","account_id":"` + s.account + `","type":"newsletter","email":"ada@example.com","source":"footer","page":null,"fields":null,"created_at":"2000-01-01T00:00:00Z"}],"next_cursor":null}` + "\n"
		if a := s.get("/leads", token).is(200).has("Cache-Control: no-store"); a.body != want {
			t.Fatalf("%s, want %s", a.body, want)
		}
	})
}

// manyLeads writes leads of an account after those that are there, one a second from 2030 on:
// the first of them of type rare.
func manyLeads(account string, n int) string {
	return manyRows(n) + `INSERT INTO leads (id, account_id, type, email, digest, created_at)
		SELECT printf('lead_%026d', i), '` + account + `', iif(i = 1, 'rare', 'common'), i || '@example.com', randomblob(16),
		strftime('%Y-%m-%dT%H:%M:%SZ', '2030-01-01', i || ' seconds') FROM n`
}

func TestLead_listThatFiltersReadsABoundedNumberOfRowsAndComesToEveryOne(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	s := newService(t)
	s.sql(manyLeads(s.account, 25_000))
	s.sql(`UPDATE leads SET type = 'edge' WHERE seq BETWEEN 15000 AND 15002`) // 15001 is the last that one request reads
	for _, scope := range []string{scopeAdmin, scopeLeads} {
		auth := "Authorization: Bearer " + s.token(s.account, scope)
		for filter, c := range map[string]struct{ rows, empty int }{
			"type=rare": {1, 2}, "type=edge": {3, 1}, "type=none": {0, 3}, "type=rare&until=2030-01-01T00:00:02Z": {1, 0},
			"type=rare&since=2030-01-01T00:00:02Z":                  {0, 3},
			"since=2030-01-01T06:56:00Z":                            {41, 0},
			"since=2030-01-01T00:00:05Z&until=2030-01-01T00:00:09Z": {4, 0},
			"until=2030-01-01T00:00:01Z":                            {0, 1},
		} {
			ids, empty := s.everyPage("/leads?"+filter, auth)
			if len(ids) != c.rows || len(slices.Compact(ids)) != c.rows || empty != c.empty {
				t.Errorf("%s: %s gives %d leads and %d empty pages, want %v", scope, filter, len(ids), empty, c)
			}
		}
		if ids, empty := s.everyPage("/leads?limit=200", auth); len(ids) != 25_000 || empty > 0 {
			t.Errorf("%s: %d leads, %d empty pages", scope, len(ids), empty)
		}
	}
	auth := "Authorization: Bearer " + s.token(s.account, scopeLeads)
	for _, wrong := range []string{"type=", "since=yesterday", "until=1", "cursor=" + newID("lead", time.Now())} {
		s.get("/leads?"+wrong, auth).is(422, "validation_failed")
	}
}

func TestLead_sentAgainIsFoundByReadingOneRowHoweverOftenItWasSentBefore(t *testing.T) {
	t.Parallel()
	s := newService(t)
	digest := (&lead{AccountID: s.account, Type: "newsletter", Email: "ada@example.com", Source: nilIfEmpty("footer"), Page: nilIfEmpty("/menu")}).digest()
	s.sql(manyRows(5_000) + fmt.Sprintf(`INSERT INTO leads (id, account_id, type, email, source, page, digest, created_at)
		SELECT printf('lead_%%026d', i), '%s', 'newsletter', 'ada@example.com', 'footer', '/menu', X'%X',
		iif(i %% 2, '1999-01-01T00:00:00Z', '2999-01-01T00:00:00Z') FROM n`, s.account, digest))
	asked := questions(s.store.writer.queries)
	id := s.post("/widget/leads", aLead).is(200).text("id")
	if again := s.post("/widget/leads", aLead).is(200).text("id"); again != id || s.count(`SELECT count(*) FROM leads`) != 5_001 {
		t.Errorf("sent twice it has the ids %s and %s, and there are %d", id, again, s.count(`SELECT count(*) FROM leads`))
	}
	found := ""
	for _, query := range asked() {
		if strings.Contains(query, "FROM leads WHERE digest = ?") {
			found = query
		}
	}
	if !strings.Contains(found, "DESC LIMIT 1)") { // the rest of the query gets that one row
		t.Fatalf("no query asks for one row: %q", asked())
	}
	for _, when := range []string{"at first", "once SQLite has counted the rows"} {
		plan := strings.Join(s.plan(found), "\n")
		if !strings.Contains(plan, "SEARCH leads USING INDEX leads_digest (digest=?)") || strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("%s: %s", when, plan)
		}
		s.sql(`ANALYZE`)
	}
}

// eraseAmongWrites runs erase, which must remove 20,000 leads of many@example.com, while a store
// on the same file goes on writing, and complains unless one of its writes comes in between.
func eraseAmongWrites(t *testing.T, s *store, account string, erase func() error) {
	t.Helper()
	raw(t, s.path, manyRows(20_000)+fmt.Sprintf(`INSERT INTO leads (id, account_id, type, email, digest, created_at)
		SELECT printf('lead_%%026d', i), '%s', 'demo', 'many@example.com', X'%X', '2020-01-01T00:00:00Z' FROM n`,
		account, (&lead{AccountID: account, Type: "demo", Email: "many@example.com"}).digest()))
	erased := make(chan error, 1)
	go func() { erased <- erase() }()
	const left = `SELECT count(*) FROM leads WHERE email = 'many@example.com'`
	between := 0 // writes that found some of the leads erased, and some not
	for {
		n := 0
		if err := s.update(t.Context(), func(t *tx) error {
			t.invalidate()
			_, err := t.exec(`UPDATE accounts SET name = name`)
			return errors.Join(err, t.one(left, nil, &n))
		}); err != nil {
			t.Fatal(err)
		}
		if n > 0 && n < 20_000 {
			between++
		}
		select {
		case err := <-erased:
			var others int
			if err := errors.Join(err, s.one(left, nil, &n), s.one(`SELECT count(*) FROM leads`, nil, &others)); err != nil || n > 0 || others != 1 {
				t.Errorf("%d are left, and %d leads of all (%v)", n, others, err)
			}
			if between == 0 {
				t.Error("no other write came in between")
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func TestErase_ofManyLeadsLetsOthersWriteInBetween(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	t.Run("by the command", func(t *testing.T) {
		t.Parallel()
		o := newOperator(t)
		o.addLeads("other@example.com")
		eraseAmongWrites(t, openTestStore(t, o.env["WIDGETD_DB"], storeOptions{}), o.account, func() error {
			out, err := o.try("leads", "erase", "-json", "Many@Example.com")
			if err == nil && !strings.Contains(out, `"erased":20000`) {
				err = errors.New(out)
			}
			return err
		})
	})
	t.Run("over HTTP", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		s.post("/widget/leads", aLead).is(200)
		auth := "Authorization: Bearer " + s.token(s.account, scopeErase)
		eraseAmongWrites(t, s.store, s.account, func() error {
			if a := s.post("/leads/erase", `{"email":"many@example.com"}`, auth); a.body != `{"erased":20000}`+"\n" {
				return errors.New(a.body)
			}
			return nil
		})
	})
}

// erasedRows is how many short leads BenchmarkErase erases.
var erasedRows = flag.Int("leads", 5_000, "short leads that BenchmarkErase erases; a tenth of them with long texts")

// BenchmarkErase erases an address that has many leads, short ones and ones with 8 KiB of fields,
// while somebody else goes on writing, and reports how long a write waited at most:
//
//	go test -run '^$' -bench Erase -benchtime 1x -leads 500000 -timeout 30m .
func BenchmarkErase(b *testing.B) {
	for name, c := range map[string]struct {
		leads  int
		fields string
	}{
		"short leads":     {*erasedRows, `NULL`},
		"with long texts": {*erasedRows / 10, `json_object('message', printf('%.*c', 8000, 'x'))`},
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				s := newService(b)
				digest := (&lead{AccountID: s.account, Type: "demo", Email: "many@example.com"}).digest()
				s.sql(manyRows(c.leads) + fmt.Sprintf(`INSERT INTO leads (id, account_id, type, email, fields, digest, created_at)
					SELECT printf('lead_%%026d', i), '%s', 'demo', 'many@example.com', %s, X'%X', '2020-01-01T00:00:00Z' FROM n`, s.account, c.fields, digest))
				ended := make(chan time.Duration)
				ctx, end := context.WithCancel(b.Context())
				go func() { ended <- longestWrite(ctx, s.store) }()
				b.StartTimer()
				erased, err := s.store.eraseLeads(b.Context(), anyAccount, "Many@example.com")
				b.StopTimer()
				end()
				if longest := <-ended; err != nil || erased != int64(c.leads) || longest < 0 {
					b.Errorf("%d erased, %v, %v", erased, longest, err)
				} else {
					b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest-write")
				}
			}
		})
	}
}

// longestWrite writes every few milliseconds until ctx ends, and returns how long a write took at
// most, or a negative duration if one failed.
func longestWrite(ctx context.Context, s *store) (longest time.Duration) {
	for ticks := time.Tick(3 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return longest
		case <-ticks:
		}
		began := time.Now()
		if err := s.update(context.WithoutCancel(ctx), func(t *tx) error {
			t.invalidate()
			return t.writeProbe()
		}); err != nil {
			return -1
		}
		longest = max(longest, time.Since(began))
	}
}

func TestPurge_removesWhatIsOldAlsoWhereTheClockWasSet(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	raw(t, o.env["WIDGETD_DB"], manyRows(5_000)+`INSERT INTO leads (id, account_id, type, email, digest, created_at)
		SELECT printf('lead_%026d', i), '`+o.account+`', 'demo', i || '@example.com', randomblob(16),
		iif(i / 10 % 2, '2020-01-01T00:00:00Z', '2999-01-01T00:00:00Z') FROM n`)
	if out := o.do("leads", "purge", "-older-than", "365d"); out != "2500 removed\n" {
		t.Errorf("%q", out)
	}
	o.store(func(s *store) {
		var left, old int
		if err := s.one(`SELECT count(*), count(*) FILTER (WHERE created_at < '2021') FROM leads`, nil, &left, &old); err != nil || left != 2500 || old > 0 {
			t.Errorf("%d are left, %d of them old (%v)", left, old, err)
		}
	})
}

func TestErase_comparesWithoutCaseAndStaysInTheAccount(t *testing.T) {
	t.Parallel()
	s := newService(t)
	partner := s.addAccount("partner")
	s.change(func(t *tx) error { return t.addOrigin(partner, "https://partner.example") })
	for _, email := range []string{"Ada@Example.com", "ADA@example.com", "ada@example.com", "bob@example.com"} {
		s.post("/widget/leads", `{"type":"newsletter","email":"`+email+`"}`).is(200)
	}
	s.post("/widget/leads", `{"type":"newsletter","email":"ada@example.com"}`, "Origin: https://partner.example").is(200)
	token := "Authorization: Bearer " + s.token(s.account, scopeErase)
	const body = `{"email":"aDa@eXample.COM"}`

	s.post("/leads/erase", body).is(401, "token_required")
	s.post("/leads/erase", body, "Authorization: Bearer "+s.token(s.account, scopeLeads)).is(403, "insufficient_scope")
	s.post("/leads/erase?account_id="+partner, body, token).is(403, "insufficient_scope")
	if n := s.count(`SELECT count(*) FROM leads`); n != 5 {
		t.Fatalf("%d leads", n)
	}
	if a := s.post("/leads/erase", body, token).is(200); a.body != "{\"erased\":3}\n" {
		t.Fatal(a.body)
	}
	if a := s.post("/leads/erase", body, token).is(200); a.body != "{\"erased\":0}\n" {
		t.Fatal(a.body)
	}
	if n := s.count(`SELECT count(*) FROM leads`); n != 2 {
		t.Fatalf("%d leads", n)
	}
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	if a := s.post("/leads/erase?account_id="+partner, body, admin).is(200); a.body != "{\"erased\":1}\n" {
		t.Fatal(a.body)
	}
}

func TestErase_leavesTheAddressInNoFile(t *testing.T) {
	t.Parallel()
	s := newService(t)
	token := "Authorization: Bearer " + s.token(s.account, scopeErase)
	s.post("/widget/leads", `{"type":"newsletter","email":"Unforgettable@example.com"}`, "Idempotency-Key: k").is(200)
	inFiles := func() (found bool) {
		for _, suffix := range []string{"", "-wal"} {
			text, err := os.ReadFile(s.store.path + suffix)
			s.check(err)
			found = found || bytes.Contains(bytes.ToLower(text), []byte("unforgettable"))
		}
		return found
	}
	if !inFiles() {
		t.Fatal("the address is not where this test looks for it")
	}
	s.post("/leads/erase", `{"email":"unforgettable@example.com"}`, token).is(200)
	if inFiles() || strings.Contains(s.log.String(), "nforgettable") {
		t.Fatal("the address is still there")
	}
}

func TestErase_byTheCommandLeavesNoTraceInAnyFile(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	var emails []string
	for i := range 300 {
		emails = append(emails, fmt.Sprintf("Erase.Me%d@example.com", i))
	}
	o.addLeads(emails...)
	if got := traces(t, o.dir, "erase.me7@"); len(got) == 0 {
		t.Fatal("the address was never there: the test looks at the wrong place")
	}
	for _, email := range emails {
		if strings.HasSuffix(email, "7@example.com") {
			o.do("leads", "erase", email)
		}
	}
	for i := range 300 {
		there := len(traces(t, o.dir, fmt.Sprintf("erase.me%d@", i))) > 0
		if erased := i%10 == 7; there == erased {
			t.Errorf("address %d: found %v, erased %v", i, there, erased)
		}
	}
}

func TestErase_underAReaderEmptiesTheWALOnceThatHasEnded(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", `{"type":"newsletter","email":"forget.me@example.com"}`).is(200)
	end := leaveOpen(t, s.store.path)
	s.change(func(tx *tx) error {
		return eraseInOne(tx, "forget.me@example.com")
	})
	s.server.scrubWAL(0)
	s.server.scrubWAL(0)
	if len(traces(t, s.dir, "forget.me@")) == 0 || !s.store.walNeedsTruncate.Load() {
		t.Fatal("the log was emptied under a reader")
	}
	end()
	s.server.scrubWAL(0)
	if names := traces(t, s.dir, "forget.me@"); len(names) > 0 || s.store.walNeedsTruncate.Load() {
		t.Errorf("it still stands in %q", names)
	}
	if log := s.log.String(); strings.Count(log, "stays in the write-ahead log") != 1 || strings.Count(log, "nothing that was erased is left in it") != 1 {
		t.Error(log)
	}
}

func TestErase_underAReaderEmptiesTheWALAlsoAfterARestartWithTheClockSet(t *testing.T) {
	t.Parallel()
	path := makeStore(t)
	old := openTestStore(t, path, storeOptions{})
	var end func()
	for _, f := range []func(*tx) error{func(tx *tx) error {
		owner, err := tx.mainAccount()
		if err == nil {
			_, err = tx.addLead(lead{AccountID: owner, Type: "demo", Email: "forget.me@example.com"})
		}
		return err
	}, func(tx *tx) error {
		end = leaveOpen(t, path)
		return eraseInOne(tx, "forget.me@example.com")
	}} {
		if err := old.update(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	if err := old.close(); err != nil {
		t.Fatal(err)
	}
	if len(traces(t, filepath.Dir(path), "forget.me@")) == 0 {
		t.Fatal("the log was emptied under a reader")
	}
	synctest.Test(t, func(t *testing.T) {
		clock := &wallClock{}
		s, err := newServer(openTestStore(t, path, storeOptions{now: clock.now}), nil, serverOptions{}, slog.New(slog.DiscardHandler), wings)
		if err != nil {
			t.Fatal(err)
		}
		end()
		ctx, stop := context.WithCancel(t.Context())
		var working sync.WaitGroup
		working.Go(func() { s.runChores(ctx) })
		time.Sleep(2 * time.Second)
		clock.set(24 * time.Hour) // which is not believed for an hour
		time.Sleep(sweepInterval)
		stop()
		working.Wait()
		if names := traces(t, filepath.Dir(path), "forget.me@"); len(names) > 0 || s.store.walNeedsTruncate.Load() {
			t.Errorf("it still stands in %q", names)
		}
	})
}

// Somebody who has changed an address with the sqlite3 shell, or has added a lead there, has no
// digest for it.
func TestErase_findsAnAddressThatTheShellWrote(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", aLead).is(200)
	s.post("/widget/leads", strings.Replace(aLead, "ada", "bob", 1)).is(200)
	s.sql(`UPDATE leads SET email = 'Eve@example.com' WHERE email = 'ada@example.com'`)
	s.sql(`INSERT INTO leads (id, account_id, type, email, created_at)
		SELECT 'lead_00000000000000000000000000', account_id, type, 'eve@example.com', created_at FROM leads LIMIT 1`)
	s.sql(manyRows(erasedAtOnce+10) + `INSERT INTO leads (id, account_id, type, email, created_at)
		SELECT printf('lead_%026d', i), (SELECT id FROM accounts), 'demo', i || '@example.com', '2020-01-01T00:00:00Z' FROM n`)
	s.sql(`UPDATE leads SET email = 'eve@example.com' WHERE email = '` + fmt.Sprint(erasedAtOnce+10) + `@example.com'`)
	s.sql(`UPDATE leads SET email = 'unknown' WHERE email = '1@example.com'`) // stays, although it has no digest and no address
	auth := "Authorization: Bearer " + s.token(s.account, scopeErase)
	for _, c := range []struct {
		email string
		want  int
	}{{"ada@example.com", 0}, {"EVE@example.com", 3}, {"eve@example.com", 0}, {"7@example.com", 1}} {
		if a := s.post("/leads/erase", `{"email":"`+c.email+`"}`, auth).is(200); a.body != fmt.Sprintf("{\"erased\":%d}\n", c.want) {
			t.Errorf("%s: %s, want %d", c.email, a.body, c.want)
		}
	}
	if n := s.count(`SELECT count(*) FROM leads`); n != erasedAtOnce+9 {
		t.Errorf("%d leads are left", n)
	}
	if names := traces(t, s.dir, "eve@example.com"); len(names) > 0 {
		t.Errorf("it is still in %q", names)
	}
}

func TestErase_byTheCommandListsAddressesThatResembleIt(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	const composed, apart = "jos\u00e9@m\u00fcller.example", "jose\u0301@mu\u0308ller.example"
	o.addLeads(composed, "JOS\u00c9@M\u00dcLLER.example", apart, apart, "jos.e+news@xn--mller-kva.example", "josef@m\u00fcller.example")
	out := o.do("leads", "erase", composed)
	id := func(email string) string {
		var id string
		o.store(func(s *store) {
			if err := s.one(`SELECT id FROM leads WHERE email = ? ORDER BY seq DESC LIMIT 1`, []any{email}, &id); err != nil {
				t.Fatal(err)
			}
		})
		return id
	}
	want := "2 erased; the address is neither in the database file nor in its write-ahead log any more; backups still hold it until they are deleted\n" +
		"not erased, but alike; if one is the same person's, erase it in its own spelling:\n" +
		"  jos.e+news@xn--mller-kva.example: 1, the last " + id("jos.e+news@xn--mller-kva.example") + "\n" +
		"  " + apart + ` ("jose\u0301@mu\u0308ller.example"): 2, the last ` + id(apart) + "\n"
	if out != want {
		t.Errorf("%s\nwant\n%s", out, want)
	}
	got := o.object("leads", "erase", "-json", composed)
	if similar := fmt.Sprint(column(objects(got["similar"]), "email")); similar != fmt.Sprint([]any{"jos.e+news@xn--mller-kva.example", apart}) || got["more_similar"] != false {
		t.Errorf("%v", got)
	}
	if got := o.object("leads", "erase", "nobody@example.com"); fmt.Sprint(got["similar"]) != "[]" {
		t.Errorf("%v", got)
	}
	if out := o.do("leads", "erase", apart); !strings.HasPrefix(out, "2 erased; ") || strings.Contains(out, apart) {
		t.Errorf("%s", out)
	}
}

func objects(list any) (all []map[string]any) {
	for _, one := range list.([]any) {
		all = append(all, one.(map[string]any))
	}
	return all
}

func TestErase_listsABoundedNumberOfAddressesOfAsManyLeadsAsThereAre(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	raw(t, o.env["WIDGETD_DB"], manyRows(2*leadsReadAtOnce+1)+`INSERT INTO leads (id, account_id, type, email, created_at)
		SELECT printf('lead_%026d', i), '`+o.account+`', 'demo', iif(i % 2, 'ada+' || (i % 101) || '@example.com', i || '@example.com'), '2020-01-01T00:00:00Z' FROM n`)
	o.store(func(s *store) {
		similar, more, err := s.similarAddresses(t.Context(), anyAccount, "ADA+1@example.com", 200)
		if err != nil || len(similar) != 100 || more || similar[0].Email != "ada+3@example.com" {
			t.Errorf("%v, %v, %v", similar, more, err)
		}
	})
	got := o.object("leads", "erase", "ada@example.com")
	similar := objects(got["similar"])
	if len(similar) != maxSimilar || got["more_similar"] != true || similar[0]["email"] != "ada+1@example.com" || similar[0]["leads"] != 50.0 {
		t.Errorf("%v", got)
	}
	if out := o.do("leads", "erase", "ada@example.com"); strings.Count(out, "\n") != 2+maxSimilar+1 || !strings.HasSuffix(out, "\n  and others: these are 20\n") {
		t.Errorf("%s", out)
	}
}

func TestLead_addressesThatResembleEachOther(t *testing.T) {
	t.Parallel()
	for _, same := range [][]string{
		{"ada@example.com", "ADA@Example.com", "a.d.a@example.com", "ada+news@example.com", "\uff21\uff44\uff41@example.com", "\u00e0d\u00e4@ex\u00e1mple.com", "ada@exa\u0301mple.com", "ada@xn--exmple-qta.com"},
		{"gr\u00fc\u00dfe@stra\u00dfe.example", "grusse@strasse.example", "gru\u0308sse@xn--strae-oqa.example", "GR\u00dcSSE@STRASSE.example"},
		{"\u0111\u1eb7ng@vi\u1ec7t.example", "dang@viet.example", "da\u0323\u0306ng@vie\u0323\u0302t.example", "da\u0306\u0323ng@vie\u0302\u0323t.example"},
		{"\ud55c\uad6d@\ub098\ub77c.example", "\u1112\u1161\u11ab\u1100\u116e\u11a8@\u1102\u1161\u1105\u1161.example"},
		{"\u0451\u0436@\u043f\u0440\u0438\u043c\u0435\u0440.\u0440\u0444", "\u0435\u0436@xn--e1afmkfd.xn--p1ai", "\u0415\u0308\u0436@\u041f\u0420\u0418\u041c\u0415\u0420.\u0420\u0424"},
		{"\u30ac@example.com", "\u30ab\u3099@example.com"},
		{"\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2@example.com", "\u03c3\u03b9\u03c3\u03c5\u03c6\u03bf\u03c3@example.com"},
		{"+@example.com", "+.@example.com"},
	} {
		for _, email := range same {
			if looseEmail(email) != looseEmail(same[0]) {
				t.Errorf("%q becomes %q, %q becomes %q", email, looseEmail(email), same[0], looseEmail(same[0]))
			}
		}
	}
	for _, different := range [][2]string{
		{"ada@example.com", "adam@example.com"}, {"ada@example.com", "ada@examp.le.com"}, {"ada@example.com", "ada@example+x.com"},
		{"ada", "@ada"}, {"a@b@c", "a@c"}, {"+a@example.com", "+b@example.com"}, {"ada@xn--zzzzzz.com", "ada@.com"}, {"", "a"},
	} {
		if looseEmail(different[0]) == looseEmail(different[1]) {
			t.Errorf("%q and %q both become %q", different[0], different[1], looseEmail(different[0]))
		}
	}
}

func leadStory(t *testing.T, o *operator) {
	o.addLeads("=cmd@example.com", "bob@example.com", "+carl@example.com", "old@example.com")
	rows := o.objects("leads", "export")
	if got := column(rows, "email"); !slices.Equal(got, []any{"=cmd@example.com", "bob@example.com", "+carl@example.com", "old@example.com"}) {
		t.Errorf("exported %v", got)
	}
	cells, err := csv.NewReader(strings.NewReader(o.do("leads", "export", "-csv"))).ReadAll()
	if err != nil || len(cells) != 5 || !slices.Equal(cells[0], []string{"id", "account_id", "type", "email", "source", "page", "fields", "created_at"}) {
		t.Fatalf("CSV %q, %v", cells, err)
	}
	if got := cells[1][3:6]; !slices.Equal(got, []string{"'=cmd@example.com", "'=footer", "/+menu"}) || cells[2][3] != "bob@example.com" || cells[3][3] != "'+carl@example.com" {
		t.Errorf("CSV %q", cells)
	}
	if got := o.object("leads", "purge", "-older-than", "36h", "-dry-run"); got["would_purge"] != 2.0 || got["dry_run"] != true {
		t.Errorf("a dry run: %v", got)
	}
	if got := column(o.objects("leads", "list"), "email"); len(got) != 4 {
		t.Errorf("after a dry run there are %v", got)
	}
	if got := o.object("leads", "purge", "-older-than", "36h"); got["purged"] != 2.0 {
		t.Errorf("purged %v", got)
	}
	o.fails("-older-than DURATION is needed", "leads", "purge")
	got := o.object("leads", "erase", "BOB@example.com")
	if got["erased"] != 1.0 || !strings.Contains(got["note"].(string), "the address is neither in the database file nor in its write-ahead log any more; backups still hold it until they are deleted") {
		t.Errorf("erased %v", got)
	}
	if got := o.object("leads", "erase", "bob@example.com", "-litestream"); got["erased"] != 0.0 || !strings.Contains(got["note"].(string), "replica") {
		t.Errorf("erased %v", got)
	}
	copied := filepath.Join(o.dir, "copy.db")
	if out := o.do("backup", copied); !strings.Contains(out, copied+": written and checked") {
		t.Errorf("backup: %s", out)
	}
	o.fails("file already exists", "backup", copied)
	o.env["WIDGETD_DB"], copied = copied, o.env["WIDGETD_DB"]
	if got := column(o.objects("leads", "export"), "email"); !slices.Equal(got, []any{"=cmd@example.com"}) {
		t.Errorf("in the copy: %v", got)
	}
	o.env["WIDGETD_DB"] = copied
	if report := o.object("check"); report["ok"] != true || fmt.Sprint(report["faults"]) != "[]" {
		t.Errorf("check: %v", report)
	}
}

func FuzzLeadBody(f *testing.F) {
	s := newService(f, withoutAddressLimits)
	f.Add([]byte(`{"type":"newsletter","email":"ada@example.com","source":"footer","page":"/menu?x#y"}`))
	f.Add([]byte(`{"type":"newsletter","email":"ada@example.com","website":"x"}`))
	for _, body := range malformedBodies {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		s := s.with(t)
		before := s.count(`SELECT count(*) FROM leads`)
		a := s.post("/widget/leads", string(body)+" ") // never empty, so that the harness sends it
		added := s.count(`SELECT count(*) FROM leads`) - before
		switch {
		case a.status == 200 && added <= 1 && utf8.Valid(body):
		case (a.status == 400 || a.status == 413 || a.status == 422) && added == 0:
			a.is(a.status, a.text("code"))
		default:
			t.Fatalf("%q: %d, %d rows: %s", body, a.status, added, a.body)
		}
	})
}

// BenchmarkLead compares 64 callers whose leads share commits with one transaction
// a request.
func BenchmarkLead(b *testing.B) {
	for _, grouped := range []bool{true, false} {
		b.Run(map[bool]string{true: "grouped", false: "one by one"}[grouped], func(b *testing.B) {
			s := newService(b, withoutAddressLimits)
			var n atomic.Int64
			var turn sync.Mutex
			b.SetParallelism(32) // times the processors
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					body := fmt.Sprintf(`{"type":"newsletter","email":"a%d@example.com","source":"footer"}`, n.Add(1))
					if !grouped {
						turn.Lock()
					}
					a := s.post("/widget/leads", body)
					if !grouped {
						turn.Unlock()
					}
					if a.status != 200 {
						b.Errorf("%d %s", a.status, a.body)
					}
				}
			})
			b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "leads/s")
		})
	}
}

func TestLead_keepsFieldsListsThemAndErasesThem(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := "Authorization: Bearer " + s.token(s.account, scopeLeads)
	const asked = `"phone":"+41 44 000 00 00","name":"Zoë <&>","message":"two\nlines\tand a tab\r\n","empty":""`
	const kept = `{"empty":"","message":"two\nlines\tand a tab\r\n","name":"Zoë <&>","phone":"+41 44 000 00 00"}`
	body := `{"type":"demo","email":"ada@example.com","fields":{` + asked + `}}`
	id := s.post("/widget/leads", body).is(200).text("id")
	if a := s.get("/leads", auth).is(200); !strings.Contains(a.body, `"page":null,"fields":`+kept+`,"created_at"`) {
		t.Errorf("listed %s", a.body)
	}
	if out := s.must("leads", "export"); !strings.Contains(out, `"fields":`+kept+`,`) {
		t.Errorf("exported %s", out)
	}
	rows, err := csv.NewReader(strings.NewReader(s.must("leads", "export", "-csv"))).ReadAll()
	if err != nil || len(rows) != 2 || rows[0][6] != "fields" || rows[1][6] != kept {
		t.Errorf("exported as CSV %q, %v", rows, err)
	}
	if out := s.must("leads", "list", "-wide"); !strings.Contains(out, kept) {
		t.Errorf("listed\n%s", out)
	}
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'lead.created' AND subject_id = ? AND data = '{}'`, id); n != 1 {
		t.Error("the event has more than the lead's id")
	}
	if again := s.post("/widget/leads", `{"fields":{"empty":"","message":"two\nlines\tand a tab\r\n","name":"Zoë <&>","phone":"+41 44 000 00 00"},"email":"ada@example.com","type":"demo"}`).is(200).text("id"); again != id {
		t.Error("the same fields in another order are another lead")
	}
	if other := s.post("/widget/leads", strings.Replace(body, "Zoë", "Zoe", 1)).is(200).text("id"); other == id {
		t.Error("other fields are the same lead")
	}
	none := s.post("/widget/leads", `{"type":"demo","email":"ada@example.com","fields":{}}`).is(200).text("id")
	if none == id || none != s.post("/widget/leads", `{"type":"demo","email":"ada@example.com"}`).is(200).text("id") {
		t.Error("no fields and an empty object are not the same")
	}
	if n := s.count(`SELECT count(*) FROM leads WHERE fields IS NULL`); n != 1 {
		t.Errorf("%d leads without fields", n)
	}
	s.post("/leads/erase", `{"email":"ADA@example.com"}`, "Authorization: Bearer "+s.token(s.account, scopeErase)).is(200)
	if names := traces(t, s.dir, "two\\nlines"); len(names) > 0 || s.count(`SELECT count(*) FROM leads`) != 0 {
		t.Errorf("the message is still in %q", names)
	}
}

func TestLead_fieldsThatAreWrongAreEachNamed(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	many := func(n int, value string) string {
		members := []string{}
		for i := range n {
			members = append(members, fmt.Sprintf(`"f%02d":%q`, i, value))
		}
		return "{" + strings.Join(members, ",") + "}"
	}
	long := strings.Repeat("x", 2000)
	exact := strings.Repeat("x", 8<<10-4*3-3*2000) // with three of 2,000 and four names of three bytes
	before := s.count(`SELECT count(*) FROM leads`)
	for fields, wrong := range map[string][]string{
		`[]`:                             {"#/fields wrong_type"},
		`null`:                           {"#/fields wrong_type"},
		`{"Name":"x","1a":"x","":"x"}`:   {"#/fields/Name invalid_name", "#/fields/1a invalid_name", "#/fields/ invalid_name"},
		`{"a/b~ü":"x"}`:                  {"#/fields/a~1b~0%C3%BC invalid_name"},
		`{"a":1,"b":null,"c":{"d":"x"}}`: {"#/fields/a wrong_type", "#/fields/b wrong_type", "#/fields/c wrong_type"},
		`{"a":"nul\u0000","b":"esc\u001b","c":"del\u007f","d":"c1\u0085"}`: {"#/fields/a control_character", "#/fields/b control_character",
			"#/fields/c control_character", "#/fields/d control_character"},
		`{"` + strings.Repeat("a", 33) + `":"x"}`: {"#/fields/" + strings.Repeat("a", 33) + " invalid_name"},
		`{"a":"` + long + `ü"}`:                   {"#/fields/a too_long"},
		many(21, "x"):                             {"#/fields wrong_length"},
		many(5, long):                             {"#/fields too_long"},
		strings.Replace(many(3, long), "{", `{"f99":"`+exact+`y",`, 1): {"#/fields/f99 too_long"},
	} {
		s.post("/widget/leads", `{"type":"demo","email":"ada@example.com","fields":`+fields+`}`).is(422, "validation_failed").names(wrong...)
	}
	if n := s.count(`SELECT count(*) FROM leads`); n != before {
		t.Errorf("%d leads were kept", n-before)
	}
	ok := strings.Replace(many(4, strings.Repeat("x", 1800)), "{", `{"f99":"`+strings.Repeat("x", 8<<10-5*3-4*1800)+`",`, 1)
	for _, fields := range []string{many(20, "x"), `{"a":"` + strings.Repeat("ü", 2000) + `"}`, `{"` + strings.Repeat("a", 32) + `":"x"}`, ok} {
		s.post("/widget/leads", `{"type":"demo","email":"ada@example.com","fields":`+fields+`}`).is(200)
	}
	s.post("/widget/leads", `{"type":"demo","email":"ada@example.com","fields":`+strings.Replace(ok, `"f99":"`, `"f99":"y`, 1)+`}`).is(422, "validation_failed").names("#/fields too_long")
}

func TestLead_isListedByTypeAndTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, withoutAddressLimits)
		other := s.addAccount("Other")
		days := []string{"2000-01-01T00:00:00Z", "2000-01-02T00:00:00Z", "2000-01-03T00:00:00Z"}
		for i, kind := range []string{"demo", "newsletter", "demo"} {
			s.post("/widget/leads", fmt.Sprintf(`{"type":%q,"email":"d%d@example.com"}`, kind, i+1)).is(200)
			if i == 1 {
				s.change(func(t *tx) error {
					_, err := t.addLead(lead{AccountID: other, Type: "demo", Email: "other@example.com"})
					return err
				})
			}
			time.Sleep(24 * time.Hour)
		}
		auth := "Authorization: Bearer " + s.token(s.account, scopeLeads)
		emails := func(rows []any) string {
			all := []string{}
			for _, row := range rows {
				name, _, _ := strings.Cut(row.(map[string]any)["email"].(string), "@")
				all = append(all, name)
			}
			return strings.Join(all, " ")
		}
		for query, want := range map[string]string{
			"":                  "d3 d2 d1",
			"?type=demo":        "d3 d1",
			"?type=contact":     "",
			"?since=" + days[1]: "d3 d2",
			"?until=" + days[1]: "d1",
			"?since=2000-01-01T00:00:01Z&until=2000-01-03T00:00:01Z": "d3 d2",
			"?type=demo&since=" + days[1]:                            "d3",
			"?type=demo&limit=1":                                     "d3",
		} {
			if got := emails(s.get("/leads"+query, auth).is(200).json()["data"].([]any)); got != want {
				t.Errorf("%s gives %q, want %q", query, got, want)
			}
		}
		next := s.get("/leads?type=demo&limit=1", auth).is(200).text("next_cursor")
		if got := emails(s.get("/leads?type=demo&limit=1&cursor="+next, auth).is(200).json()["data"].([]any)); got != "d1" {
			t.Errorf("the second page has %q", got)
		}
		s.get("/leads?type=Demo&since=yesterday&until=2000-01-01", auth).is(422, "validation_failed").
			names("?type invalid_type", "?since invalid_time", "?until invalid_time")
	})
}

func TestLead_listOfCommandsTakesDatesWithTheirWholeDay(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	other := strings.TrimSpace(o.do("account", "add", "Other"))
	o.change(func(t *tx) error {
		for i, at := range []string{"2026-01-01T23:59:59Z", "2026-01-02T00:00:00Z", "2026-01-02T23:59:59Z", "2026-01-03T00:00:00Z"} {
			when, _ := parseStamp(at)
			account := o.account
			if i == 3 {
				account = other
			}
			if _, err := t.at(when.Sub(t.now.Time)).addLead(lead{AccountID: account, Type: "demo", Email: fmt.Sprintf("d%d@example.com", i+1)}); err != nil {
				return err
			}
		}
		return nil
	})
	for args, want := range map[string]string{
		"":                                    "d4 d3 d2 d1",
		"-until 2026-01-02":                   "d3 d2 d1",
		"-since 2026-01-02":                   "d4 d3 d2",
		"-since 2026-01-02 -until 2026-01-02": "d3 d2",
		"-until 2026-01-02T00:00:00Z":         "d1",
		"-account Other":                      "d4",
		"-since 1d":                           "",
		"-type newsletter":                    "",
	} {
		got := []string{}
		for _, email := range column(o.objects(append([]string{"leads", "list"}, strings.Fields(args)...)...), "email") {
			got = append(got, strings.TrimSuffix(email.(string), "@example.com"))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s gives %q, want %q", args, got, want)
		}
	}
	if out := o.do("leads", "list", "-limit", "1"); !strings.Contains(out, "d4@") || strings.Contains(out, "d3@") || !strings.Contains(o.noted, "print more with -limit N or 'widgetd leads export'") {
		t.Errorf("listed\n%s%s", out, o.noted)
	}
}

// eraseInOne erases the leads of an address in one transaction.
func eraseInOne(t *tx, email string) error {
	found, err := t.leadsInRange(anyAccount, leadRanges(email)[0], erasedAtOnce)
	if err != nil {
		return err
	}
	if err := t.blankLeads(email, found); err != nil {
		return err
	}
	if found, err = t.leadsInRange(anyAccount, leadRanges(email)[0], erasedAtOnce); err != nil {
		return err
	}
	_, err = t.deleteLeads(found)
	return err
}

// With one digest for all leads of an address, as when one form was sent again and again, each part
// must begin where the last one ended.
func TestErase_partBeginsWhereTheLastOneEnded(t *testing.T) {
	t.Parallel()
	s := newService(t)
	reads := questions(s.store.queries)
	if _, err := s.store.leadsInRange(anyAccount, leadRanges("ada@example.com")[0], 10); err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(s.plan(reads()[0]), "\n")
	for _, step := range []string{"INDEX leads_digest (digest=? AND rowid>?)", "INDEX leads_digest (digest>? AND digest<?)"} {
		if !strings.Contains(plan, step) {
			t.Errorf("no %s in\n%s", step, plan)
		}
	}
	if strings.Contains(plan, "TEMP B-TREE") {
		t.Errorf("it sorts:\n%s", plan)
	}
}

func TestErase_overwritesWithValuesOfTheSameLength(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", `{"type":"demo","email":"zoë@example.com","source":"é","page":"/menü","fields":{"name":"Zoë"}}`).is(200)
	s.post("/widget/leads", `{"type":"demo","email":"zoë@example.com"}`).is(200)
	size := `SELECT group_concat(length(CAST(email AS BLOB)) || ' ' || coalesce(length(CAST(source AS BLOB)), '-') || ' ' ||
		coalesce(length(CAST(page AS BLOB)), '-') || ' ' || coalesce(length(CAST(fields AS BLOB)), '-')) FROM leads`
	var before, after string
	s.check(s.store.one(size, nil, &before))
	s.change(func(t *tx) error {
		found, err := t.leadsInRange(anyAccount, leadRanges("zoë@example.com")[0], erasedAtOnce)
		return errors.Join(err, t.blankLeads("ZOË@example.com", found))
	})
	s.check(s.store.one(size, nil, &after))
	if after != before || s.count(`SELECT count(*) FROM leads WHERE email GLOB '*[^x]*' OR source GLOB '*[^x]*' OR page GLOB '/*[^x]*' OR fields GLOB '*[^{} ]*'`) != 0 {
		t.Errorf("lengths %s, want %s: %s", after, before, s.dump())
	}
}
