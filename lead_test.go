package main

import "testing"

func TestALeadIsKeptAndAnswersWithItsID(t *testing.T) {
	s := newService(t)
	a := s.post("/widget/leads", `{"type":"newsletter","email":"Ada@Example.COM","source":"footer","page":"/menu?utm=1#top","unknown":1}`, "Origin: "+siteOrigin).is(200)
	if want := `{"ok":true,"id":"` + a.text("id") + "\"}\n"; a.body != want {
		t.Fatalf("body %q, want %q", a.body, want)
	}
	if !validID("lead", a.text("id")) {
		t.Fatalf("id %q", a.text("id"))
	}
	rows, err := s.store.leads(s.account, "", 10)
	s.check(err)
	if len(rows) != 1 || rows[0].Email != "Ada@example.com" || *rows[0].Page != "/menu" || *rows[0].Source != "footer" || rows[0].ID != a.text("id") {
		t.Fatalf("rows %+v", rows)
	}
}
