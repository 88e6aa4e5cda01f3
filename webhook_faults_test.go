package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// foreign changes rows as another process does, so that the worker does not notice at once.
func (s *service) foreign(query string, args ...any) {
	s.t.Helper()
	other, err := openStore(s.store.path, storeOptions{noCheckpoints: true})
	s.check(err)
	s.check(other.update(s.t.Context(), func(t *tx) error { _, err := t.try(query, args...); return err }))
	s.check(other.close())
}

// rename gives a table another name, without which the worker can't work; it does not read the webhooks anew for that.
func (s *service) rename(from, to string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		return t.run(`ALTER TABLE ` + from + ` RENAME TO ` + to)
	})
}

// The disk fills up after events were written: what comes of sending them can't be recorded.
func TestWebhook_onAFullDiskEachEventIsSentOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, _ string) {
		r.setAnswer(func(w http.ResponseWriter, _ message) { http.Error(w, strings.Repeat("no ", 900), 500) })
		s.announceToAll([]string{s.account}, eventLeadCreated, 2*maxUnrecorded)
		want := s.eventIDs(eventLeadCreated)
		s.limitPages(0)
		defer s.startSending(10 * time.Second)()
		letPass(30 * time.Second)
		if !strings.Contains(s.log.String(), faultWebhookResult) {
			t.Error("the log does not say that nothing can be recorded")
		}
		if got := len(r.take()); got > maxUnrecorded+maxSendingWebhook {
			t.Errorf("%d were sent while nothing could be recorded", got)
		}
		s.limitPages(-1)
		r.status(200)
		letPass(time.Hour)
		for _, id := range want {
			if n := s.count(`SELECT count(*) FROM deliveries WHERE event_id = ? AND status = 200`, id); n != 1 {
				t.Errorf("%d deliveries of %s are in the log as accepted", n, id)
			}
		}
	})
}

// What a receiver answers is shown to people: by a command, and by views that are read in a terminal.
func TestWebhook_answerIsKeptWithoutWhatATerminalActsOn(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"a\tb\r\nc":                    "a\tb\nc",
		"\x1b[31mred\x07\x00\x7f":      "[31mred",
		"\u009b31mred\u0085\u0090x":    "31mredx",
		"\xff\xc3 half a letter: \xc3": " half a letter: ",
	} {
		if got := excerpt([]byte(answer), maxDeliveryAnswer); got != want {
			t.Errorf("of %q %q is kept, want %q", answer, got, want)
		}
	}
	got := excerpt([]byte(strings.Repeat("é", 3000)), maxDeliveryAnswer)
	if got != strings.Repeat("é", maxDeliveryAnswer/2) {
		t.Errorf("of a long answer %d bytes are kept", len(got))
	}
}

// One event that can't be read holds up no other webhook, and is told in the log.
func TestWebhook_eventThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	bubbleOfWebhooks(t, func(s *service, r *receiver) {
		other := s.addAccount("other")
		s.subscribe(s.account, r.url("/damaged"), eventLeadCreated)
		s.subscribe(other, r.url("/other"), eventLeadCreated)
		s.announce(s.account, eventLeadCreated)
		s.change(func(t *tx) error { // as a damaged page may look
			if err := t.run(`PRAGMA ignore_check_constraints = ON`); err != nil {
				return err
			}
			_, err := t.try(`UPDATE events SET at = 'never' WHERE type = 'lead.created'`)
			return errors.Join(err, t.run(`PRAGMA ignore_check_constraints = OFF`))
		})
		defer s.startSending(time.Second)()
		for range size(20, 100) {
			began := time.Now()
			s.announce(other, eventLeadCreated)
			if got := r.take(); len(got) != 1 || got[0].at != began {
				t.Fatalf("%d came, want the other webhook's at once", len(got))
			}
			time.Sleep(time.Second / 2)
		}
		if !strings.Contains(s.log.String(), faultWebhooksRead) {
			t.Error("the log does not say that an event can't be read")
		}
	})
}
