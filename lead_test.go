package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

const aLead = `{"type":"newsletter","email":"ada@example.com","source":"footer","page":"/menu"}`

// kept sends a lead, which must be kept, and returns its id.
func (s *service) kept(lead string, headers ...string) (id string) {
	s.t.Helper()
	return s.post("/widget/leads", lead, headers...).is(200).text("id")
}

func TestLead_isFoundAgainOnceTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := &wallClock{}
		s := newService(t, func(of *storeOptions, _ *serverOptions) { of.now = clock.now })
		first := s.kept(aLead)
		clock.set(-time.Hour)
		second := s.kept(aLead)
		if second == first {
			t.Error("the lead of a later hour is taken for this one")
		}
		equal(t, "a repetition answers", s.kept(aLead), second)
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
	equal(t, "ids", len(slices.Compact(ids)), 1)
	s.counts(1, `SELECT count(*) FROM leads`)
}

// trapped is the body of a lead with the trap for bots filled in.
func trapped(lead string) string {
	return strings.Replace(lead, "{", `{"website":"https://spam.example",`, 1)
}

// Against anybody who would learn who has sent what, and a bot that would learn that it is known: repeating a
// submission tells only of the last ten minutes; a bot that sends its submission again, in every way that there is,
// sees what the sender of a lead that is kept sees.
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
					equal(t, "the time in a new id", id[:len("lead_")+9], newID("lead", time.Now())[:len("lead_")+9])
				}
				nth := fmt.Sprint(slices.Index(ids, id))
				fmt.Fprintf(&seen, "%d %s\n", a.status, strings.Replace(a.body, id, nth, 1))
			}
			other := strings.Replace(aLead, "footer", "header", 1)
			for _, lead := range []string{aLead, aLead, other} {
				send(lead)
			}
			for _, lead := range []string{aLead, aLead, other} {
				send(lead, "Idempotency-Key: one")
			}
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
		s.counts(3, `SELECT count(*) FROM leads`)
		equal(t, "a bot sees", story(trapped), kept)
		s.counts(3, `SELECT count(*) FROM leads`)
		s.counts(3, `SELECT sum(n) FROM daily_counts WHERE name GLOB 'trapped_acct_*'`)
		equal(t, "files with what the bot sent", traces(t, s.dir, "spam.example"), nil)
	})
}

// manyErased is how many leads eraseAmongWrites has erased: more than several of its transactions take.
func manyErased() int { return size(2_000, 20_000) }

// eraseAmongWrites runs erase, which must remove manyErased leads of many@example.com, while a store
// on the same file goes on writing, and complains unless one of its writes comes in between.
func eraseAmongWrites(t *testing.T, s *store, account string, erase func() error) {
	t.Helper()
	raw(t, s.path, manyRows(manyErased())+fmt.Sprintf(`
		INSERT INTO leads (id, account_id, type, email, digest, created_at)
		SELECT printf('lead_%%026d', i), '%s', 'demo', 'many@example.com', X'%X', '2020-01-01T00:00:00Z' FROM n`,
		account, (&lead{AccountID: account, Type: "demo", Email: "many@example.com"}).digest()))
	erased := make(chan error, 1)
	go func() { erased <- erase() }()
	between := 0 // writes that found some of the leads blanked or erased, and some not
	for {
		var first, last bool // whether the lead to be erased first is as it was, and the last one
		must(t, s.update(t.Context(), func(t *tx) error {
			_, err := t.try(`UPDATE accounts SET name = name`)
			const is = `SELECT count(*) FROM leads WHERE id = printf('lead_%026d', ?) AND email = 'many@example.com'`
			return errors.Join(err, t.one(is, []any{1}, &first), t.one(is, []any{manyErased()}, &last))
		}))
		if first != last {
			between++
		}
		select {
		case err := <-erased:
			var left, all int
			const counts = `SELECT count(*) FILTER (WHERE email = 'many@example.com'), count(*) FROM leads`
			must(t, errors.Join(err, s.one(counts, nil, &left, &all)))
			if left > 0 || all != 1 || between == 0 {
				t.Errorf("%d are left, and %d leads of all; %d other writes came in between", left, all, between)
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
			out, err := o.try("lead", "erase", "-json", "Many@Example.com")
			if err == nil && !strings.Contains(out, fmt.Sprintf(`"erased":%d`, manyErased())) {
				err = errors.New(out)
			}
			return err
		})
	})
	t.Run("over HTTP", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		s.kept(aLead)
		eraseAmongWrites(t, s.store, s.account, func() error {
			a := s.post("/leads/erase", `{"email":"many@example.com"}`, s.auth(s.account, scopeWriteLeads))
			if a.body != fmt.Sprintf("{\"erased\":%d}\n", manyErased()) {
				return errors.New(a.body)
			}
			return nil
		})
	})
}

func TestPurge_removesWhatIsOldAlsoWhereTheClockWasSet(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	raw(t, o.env["WIDGETD_DB"], manyRows(1_000)+`
		INSERT INTO leads (id, account_id, type, email, digest, created_at)
		SELECT printf('lead_%026d', i), '`+o.account+`', 'demo', i || '@example.com', randomblob(16),
		iif(i / 10 % 2, '2020-01-01T00:00:00Z', '2999-01-01T00:00:00Z') FROM n`)
	equal(t, "purge", o.do("lead", "purge", "-older-than", "365d"), "500 leads removed\n")
	o.store(func(s *store) {
		var left, old int
		must(t, s.one(`SELECT count(*), count(*) FILTER (WHERE created_at < '2021') FROM leads`, nil, &left, &old))
		equal(t, "those that are left, and the old ones", []int{left, old}, []int{500, 0})
	})
}

func TestErase_underAReaderEmptiesTheWALOnceThatHasEnded(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", strings.Replace(aLead, "ada", "forget.me", 1)).is(200)
	end := leaveOpen(t, s.store.path)
	s.change(func(t *tx) error {
		found, err := t.leadsOfAddress(anyAccount, "forget.me@example.com")
		t.blankLeads(found)
		t.deleteLeads(found)
		return err
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
	for _, line := range []string{"stays in the write-ahead log", "nothing that was erased is left in it"} {
		equal(t, line, strings.Count(s.log.String(), line), 1)
	}
}

// Somebody who has changed an address with the sqlite3 shell, or has added a lead there, has no digest for it.
func TestErase_findsAnAddressThatTheShellWrote(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", aLead).is(200)
	s.post("/widget/leads", strings.Replace(aLead, "ada", "bob", 1)).is(200)
	s.sql(`UPDATE leads SET email = 'Eve@example.com' WHERE email = 'ada@example.com'`)
	s.sql(`INSERT INTO leads (id, account_id, type, email, created_at)
		SELECT 'lead_00000000000000000000000000', account_id, type, 'eve@example.com', created_at FROM leads LIMIT 1`)
	s.sql(manyRows(leadsAtOnce+10)+`
		INSERT INTO leads (id, account_id, type, email, created_at)
		SELECT printf('lead_%026d', i), ?, 'demo', i || '@example.com', '2020-01-01T00:00:00Z' FROM n`, s.account)
	s.sql(`UPDATE leads SET email = 'eve@example.com' WHERE email = '` + fmt.Sprint(leadsAtOnce+10) + `@example.com'`)
	// This one stays, although it has no digest and no address.
	s.sql(`UPDATE leads SET email = 'unknown' WHERE email = '1@example.com'`)
	auth := s.auth(s.account, scopeWriteLeads)
	for _, c := range []struct {
		email string
		want  int
	}{{"ada@example.com", 0}, {"EVE@example.com", 3}, {"eve@example.com", 0}, {"7@example.com", 1}} {
		s.post("/leads/erase", `{"email":"`+c.email+`"}`, auth).is(200).says(fmt.Sprintf("{\"erased\":%d}\n", c.want))
	}
	s.counts(leadsAtOnce+9, `SELECT count(*) FROM leads`)
	equal(t, "files with it", traces(t, s.dir, "eve@example.com"), nil)
}

// Against erasing that leaves a lead whose address is written in other capitals, or takes that of somebody else.
func TestErase_comparesWithoutCaseAsUnicodeSays(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for _, c := range []struct {
		kept, erased string
		want         float64
	}{
		{"νίκος@example.gr", "ΝΊΚΟΣ@Example.GR", 1}, {"ΝΊΚΟΣ@example.gr", "νίκοσ@example.gr", 1},
		{"a@όμιλος.gr", "A@ΌΜΙΛΟΣ.GR", 1}, {"\u212a@example.com", "K@example.com", 1},
		{"ß@a.example", "ẞ@a.example", 1},
		{"a@İstanbul.example", "a@istanbul.example", 0}, {"a@İzmir.example", "a@i\u0307zmir.example", 1},
		{"İlker@example.com", "ilker@example.com", 0}, {"ılgaz@example.com", "ILGAZ@example.com", 0},
	} {
		o.addLeads(normalEmail(c.kept))
		equal(t, c.kept, o.object("lead", "erase", c.erased)["erased"], any(c.want))
	}
	equal(t, "what is kept", normalEmail("É@İSTANBUL.É.ΣΣ"), "É@i\u0307stanbul.é.σσ")
}

func TestErase_byTheCommandListsAddressesThatResembleIt(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	const composed, apart = "jos\u00e9@m\u00fcller.example", "jose\u0301@m\u00fcller.example"
	const resembling = "jos.\u00e9+news@m\u00fcller.example"
	o.addLeads(composed, "JOS\u00c9@M\u00dcLLER.example", apart, resembling, resembling, "josef@m\u00fcller.example")
	out := o.do("lead", "erase", composed)
	id := func(email string) (id string) {
		o.store(func(s *store) {
			must(t, s.one(`SELECT id FROM leads WHERE email = ? ORDER BY seq DESC LIMIT 1`, []any{email}, &id))
		})
		return id
	}
	equal(t, "the output", out, "2 leads erased; "+inNoFile+"\n"+
		"not erased, but alike; if one is the same person's, erase it in its own spelling:\n"+
		"  "+resembling+` ("jos.\u00e9+news@m\u00fcller.example"): 2, the last `+
		id(resembling)+"\n")
	got := o.object("lead", "erase", "-json", composed)
	equal(t, "alike", column(objects(got["similar"]), "email"), []any{resembling})
	equal(t, "more_similar", got["more_similar"], false)
	equal(t, "alike to nobody", o.object("lead", "erase", "nobody@example.com")["similar"], any([]any{}))
	out = o.do("lead", "erase", apart)
	contains(t, out, "1 lead erased; ")
	lacks(t, out, apart)
}

// inNoFile is what erasing says of an address.
const inNoFile = "the address is neither in the database file nor in its write-ahead log any more; " +
	"backups still hold it until they are deleted"

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
	each := size(5, 50) // leads of one address
	raw(t, o.env["WIDGETD_DB"], manyRows(2*101*each)+`
		INSERT INTO leads (id, account_id, type, email, created_at)
		SELECT printf('lead_%026d', i), '`+o.account+`', 'demo', iif(i % 2, 'ada+' || (i % 101), i) || '@example.com',
		'2020-01-01T00:00:00Z' FROM n`)
	got := o.object("lead", "erase", "ada@example.com")
	similar := objects(got["similar"])
	if len(similar) != maxSimilar || got["more_similar"] != true || similar[0]["email"] != "ada+1@example.com" ||
		similar[0]["leads"] != float64(each) {
		t.Errorf("%v", got)
	}
	out := o.do("lead", "erase", "ada@example.com")
	if strings.Count(out, "\n") != 2+maxSimilar+1 || !strings.HasSuffix(out, "\n  and others: these are 20\n") {
		t.Errorf("%s", out)
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

func TestLead_fieldsHaveBounds(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	fields := func(n int, value string, more ...string) string {
		for i := range n {
			more = append(more, fmt.Sprintf(`"f%02d":%q`, i, value))
		}
		return "{" + strings.Join(more, ",") + "}"
	}
	rest := func(n int) string { return `"f99":"` + strings.Repeat("x", n) + `"` }
	long, most := strings.Repeat("ü", 2000), 8<<10-5*3-4*1800 // what five names and four values of 1,800 leave
	for body, wrong := range map[string]string{
		fields(20, "x"): "", fields(21, "x"): "#/fields wrong_length",
		fields(1, long): "", fields(1, long+"x"): "#/fields/f00 too_long",
		fields(4, long[:1800], rest(most)): "", fields(4, long[:1800], rest(most+1)): "#/fields too_long",
	} {
		a := s.post("/widget/leads", `{"type":"demo","email":"ada@example.com","fields":`+body+`}`)
		if wrong == "" {
			a.is(200)
		} else {
			a.invalid(wrong)
		}
	}
}

func TestMember_thatIsAnEmailAddressIsJudged(t *testing.T) {
	t.Parallel()
	label63, local64 := strings.Repeat("a", 63), strings.Repeat("l", 64)
	longest := local64 + "@" + label63 + "." + label63 + "." + strings.Repeat("b", 61) // 254 octets
	for _, right := range []string{
		"a@b.co", "ada.lovelace+menu@sub.example.co.uk", "!#$%&'*+-/=?^_`{|}~@example.com", "jürg@zürich.example",
		"用户@例子.广告", "a@xn--fsq.com", "a@col·legi.cat", "a@צה״ל.example", "a@ג׳ירף.example",
		"a@نامه\u200cای.example", "a@ශ්\u200dරී.example", "a@アニメ・マンガ.example",
		"a@二〇.example", "a@İstanbul.example", "a@e\u0301.example",
		"A@EXAMPLE.COM", local64 + "@example.com", longest, "a@1.2.example", "a@" + label63 + ".com",
	} {
		if code, _ := checkEmail.of(right); code != "" {
			t.Errorf("%q is refused: %s", right, code)
		}
	}
	for _, wrong := range []string{
		"@", "a@", "@b.co", "a", "a.b.co", "a@b", "a@b.", "a@.co", "a@b..co", "a@-b.co", "a@b-.co", "a@b_c.co",
		"a@b.1", "a@127.0.0.1", "a@[127.0.0.1]", "a@[IPv6:::1]",
		".a@b.co", "a.@b.co", "a..b@b.co", `"a b"@b.co`, `"a"@b.co`, "a b@c.co", "a@b c.co", "Ada <a@b.co>",
		"<a@b.co>", "a@b.co (x)", "a(x)@b.co", "a@b.co,c@d.co", "a@b.co;c@d.co",
		"a@b@c.co", "a\\@b.co", "a,b@c.co", "mailto:a@b.co", "a@b.co\n", "a@b.co ", "a@http://b.co", "a@b.co/x",
		"a@b.co:25", "l" + local64 + "@example.com",
		"a" + longest, strings.Replace(longest, ".b", ".bb", 1), "a@a" + label63 + ".com", "a\u200b@b.co",
		"a\u202e@b.co", "a@b\u3002co", "a\ufffd@b.co", "😀@b.co", "a@·.co", "a@\u200d.co",
		"a@b\u200bc.co", "a@b\u00adc.co", "a@b.·",
	} {
		if code, _ := checkEmail.of(wrong); code == "" {
			t.Errorf("%q is taken", wrong)
		}
	}
}

var defaultSunset = time.Date(2026, time.July, 1, 0, 0, 0, 0, time.UTC)

func TestLegacy_countsThatCanNotBeWrittenWait(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		gone, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		go s.store.update(t.Context(), func(*tx) error { <-release; return nil })
		synctest.Wait()
		s.get("//api/legacy/old").is(404)
		failed := make(chan error, 1)
		go func() { failed <- s.chore(countLegacyCalls)(gone) }()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		later := newStamp(time.Now())
		s.get("//api/legacy/old").is(404) // while that waits
		cancel()
		if err := <-failed; err == nil {
			t.Fatal("written although the writer was busy")
		}
		close(release)
		s.check(s.chore(countLegacyCalls)(t.Context()))
		s.counts(2, `SELECT sum(calls) FROM legacy_calls WHERE last_at = ?`, later)
	})
}
