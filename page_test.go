package main

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLanguage_isTheOneWithTheHighestWeight(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"": "en", "de": "de", "DE-ch": "de", "fr-CH, fr;q=0.9, en;q=0.8, de;q=0.7, *;q=0.5": "fr",
		"en;q=0.4,it;q=0.5": "it", "es, pt": "en", "es,it;q=0.2": "it",
		"de;q=0, fr;q=0.1": "fr", "*": "en", "es, *;q=0.5, de;q=0.6": "de", "de;q=2, it": "it", "de;q=x": "en",
		"de; q=0.5 ,fr; q=0.4": "de", "fr,de": "fr",
		"deutsch": "en", strings.Repeat("es,", 30) + "de": "en", "de;q=NaN": "en", ";;,,": "en",
		strings.Repeat("x", 600) + ",de": "en",
	} {
		equals(t, header, acceptedLanguage([]string{header}).Lang(), want)
	}
	equals(t, "the language of two lines", acceptedLanguage([]string{"es", "it"}).Lang(), "it")
}

func TestLanguage_writesAmountsRatesAndTimes(t *testing.T) {
	t.Parallel()
	first := newStamp(time.Date(2026, 3, 1, 13, 5, 9, 0, time.UTC))
	for lang, want := range map[string]string{
		"en": "CHF 1,234,567.05 |€0.09|−£12.00|DKK 1,000.00|8.1%|25%|0%|7.75%|1 March 2026, 13:05 UTC",
		"de": "CHF 1’234’567.05|0,09 €|−12,00 £|1.000,00 DKK|8,1 %|25 %|0 %|7,75 %|1. März 2026, 13:05 UTC",
		"fr": "1_234_567.05 CHF|0,09 €|−12,00 £|1_000,00 DKK|8,1 %|25 %|0 %|7,75 %|1er mars 2026, 13:05 UTC",
		"it": "CHF 1’234’567.05|0,09 €|−12,00 £|1.000,00 DKK|8,1 %|25 %|0 %|7,75 %|1º marzo 2026, 13:05 UTC",
	} {
		l := pageLanguage(slices.Index(pageLanguages, lang))
		got := strings.Join([]string{l.money("CHF", 123456705), l.money("EUR", 9), l.money("GBP", -1200),
			l.money("DKK", 100000),
			l.rate("EUR", 810), l.rate("EUR", 2500), l.rate("EUR", 0), l.rate("EUR", 775), l.moment(first, time.UTC)},
			"|")
		got = strings.NewReplacer("\u00a0", " ", "\u202f", "_").Replace(got)
		if want = strings.ReplaceAll(want, " |", "|"); got != want {
			t.Errorf("%s: %s\nwant %s", lang, got, want)
		}
	}
	if l := pageLanguage(1); l.rate("CHF", 810) != "8.1\u00a0%" || l.moment(stamp{}, time.UTC) != "" {
		t.Errorf("%q %q", l.rate("CHF", 810), l.moment(stamp{}, time.UTC))
	}
}

// TestPages_haveEveryTextInEveryLanguage holds the files of texts against each other, and against the keys that
// templates and code name: every language has each text, with the verbs of the English one, and nothing else.
func TestPages_haveEveryTextInEveryLanguage(t *testing.T) {
	t.Parallel()
	all := textsByLanguage()
	verbs := regexp.MustCompile(`%[^ ]`)
	for i, lang := range pageLanguages {
		name := "web/text_" + lang + ".json"
		decoder := json.NewDecoder(strings.NewReader(embedded(name)))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&pageTexts{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := parseJSON([]byte(embedded(name))); err != nil { // no text twice
			t.Errorf("%s: %v", name, err)
		}
		equals(t, "months in "+lang, len(all[i].Months), 12)
		for j := range reflect.TypeFor[pageTexts]().NumField() {
			english, isMap := reflect.ValueOf(all[0]).Field(j).Interface().(map[string]string)
			if !isMap {
				continue
			}
			texts := reflect.ValueOf(all[i]).Field(j).Interface().(map[string]string)
			got, want := slices.Sorted(maps.Keys(texts)), slices.Sorted(maps.Keys(english))
			if !slices.Equal(got, want) {
				t.Errorf("%s has the texts %v, want %v", name, got, want)
			}
			for key, text := range texts {
				want := verbs.FindAllString(english[key], -1)
				if strings.TrimSpace(text) == "" || !slices.Equal(verbs.FindAllString(text, -1), want) {
					t.Errorf("%s in %s: %q", key, lang, text)
				}
			}
		}
	}
	outcomes := []string{outcomeUnpaid, outcomePending, outcomeWaiting, outcomeDeclined, outcomeLeft, outcomeLapsed,
		outcomeReview, "404", "429", "4xx", "5xx",
		orderAuthorized, orderAccepted, orderPaid, orderPartRefunded, orderRefunded, orderCancelled, orderExpired}
	var others []string
	for _, method := range []string{methodCard, methodMobile, methodCash, methodTerminal, methodVoucher, methodOther} {
		others = append(others, "method_"+method)
	}
	others = append(others, "pay_"+methodCard, "pay_"+methodMobile)
	usesEveryText(t, all[0].Pay, "pay.html", "order_page.go", outcomes, others)
	usesEveryText(t, all[0].OAuth, "oauth.html", "oauth_page.go", []string{"403", "429", "4xx", "5xx"}, nil)
	equals(t, "scopes", strings.Join(slices.Sorted(maps.Keys(all[0].Scopes)), " "),
		strings.Join(slices.Sorted(slices.Values(appScopes)), " "))
}

// usesEveryText checks that texts are those which a template and the code beside it name, besides a title and a text
// of each kind, and others.
func usesEveryText(t *testing.T, texts map[string]string, template, code string, kinds, others []string) {
	t.Helper()
	used := map[string]bool{}
	shown := embedded("web/" + template)
	for _, key := range captures(`"([a-z0-9_]+)"`, shown+fileText(t, code)) {
		if _, ok := texts[key]; ok {
			used[key] = true
		}
	}
	for _, key := range slices.Concat(captures(`\.T "(\w+)"`, shown), others) {
		used[key] = true
	}
	for _, kind := range kinds {
		used["title_"+kind], used["text_"+kind] = true, true
	}
	if want, got := slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(texts)); !slices.Equal(got, want) {
		t.Errorf("%s and %s use %v, and the texts are %v", template, code, want, got)
	}
}
