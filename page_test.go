package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLanguage_isTheOneWithTheHighestWeight(t *testing.T) {
	t.Parallel()
	owners := pageLanguages[:ownerLanguages]
	for header, want := range map[string]string{
		"": "en", "de": "de", "DE-ch": "de", "fr-CH, fr;q=0.9, en;q=0.8, de;q=0.7, *;q=0.5": "fr",
		"en;q=0.4,it;q=0.5": "it", "es, pt": "en", "es,it;q=0.2": "it",
		"de;q=0, fr;q=0.1": "fr", "*": "en", "es, *;q=0.5, de;q=0.6": "de", "de;q=2, it": "it", "de;q=x": "en",
		"de; q=0.5 ,fr; q=0.4": "de", "fr,de": "fr",
		"deutsch": "en", strings.Repeat("es,", 30) + "de": "en", "de;q=NaN": "en", ";;,,": "en",
		strings.Repeat("x", 600) + ",de": "en",
	} {
		equal(t, header, acceptedLanguage([]string{header}, owners).Lang(), want)
	}
	equal(t, "the language of two lines", acceptedLanguage([]string{"es", "it"}, pageLanguages).Lang(), "it")
	for header, want := range map[string]string{
		"nn-NO,en;q=0.9": "nb", "no": "nb", "sv-FI": "sv", "FI": "fi", "da,de;q=0.9": "da",
	} {
		equal(t, header, acceptedLanguage([]string{header}, pageLanguages).Lang(), want)
	}
	equal(t, "a page for owners", acceptedLanguage([]string{"da,de;q=0.9"}, owners).Lang(), "de")
}

func TestLanguage_writesAmountsRatesAndTimes(t *testing.T) {
	t.Parallel()
	first := newStamp(time.Date(2026, 3, 1, 13, 5, 9, 0, time.UTC))
	for lang, want := range map[pageLanguage]string{
		"en":    "CHF 1,234,567.05|€0.09|−£12.00|DKK 1,000.00|8.1%|25%|0%|7.75%|1 March 2026, 13:05",
		"de":    "CHF 1’234’567.05|0,09 €|−12,00 £|1.000,00 DKK|8,1 %|25 %|0 %|7,75 %|1. März 2026, 13:05 Uhr",
		"de-CH": "CHF 1’234’567.05|0,09 €|−12,00 £|1.000,00 DKK|8,1 %|25 %|0 %|7,75 %|1. März 2026, 13:05 Uhr",
		"fr":    "1_234_567.05 CHF|0,09 €|−12,00 £|1_000,00 DKK|8,1 %|25 %|0 %|7,75 %|1er mars 2026 à 13 h 05",
		"it":    "CHF 1’234’567.05|0,09 €|−12,00 £|1.000,00 DKK|8,1%|25%|0%|7,75%|1º marzo 2026, ore 13:05",
		"nb":    "1 234 567,05 CHF|0,09 €|−12,00 £|1 000,00 DKK|8,1 %|25 %|0 %|7,75 %|1. mars 2026 kl. 13:05",
		"sv":    "1 234 567,05 CHF|0,09 €|−12,00 £|1 000,00 DKK|8,1 %|25 %|0 %|7,75 %|1 mars 2026 kl. 13:05",
		"da":    "1.234.567,05 CHF|0,09 €|−12,00 £|1.000,00 kr.|8,1 %|25 %|0 %|7,75 %|1. marts 2026 kl. 13.05",
		"fi":    "1 234 567,05 CHF|0,09 €|−12,00 £|1 000,00 DKK|8,1 %|25 %|0 %|7,75 %|1. maaliskuuta 2026 klo 13.05",
	} {
		got := strings.Join([]string{lang.money("CHF", 123456705), lang.money("EUR", 9), lang.money("GBP", -1200),
			lang.money("DKK", 100000), lang.rate(810), lang.rate(2500), lang.rate(0), lang.rate(775),
			lang.moment(first, time.UTC)}, "|")
		equal(t, string(lang), plainSpaces(got), want)
	}
	german := pageLanguage("de")
	equal(t, "no time", german.moment(stamp{}, time.UTC)+german.until(stamp{}, time.Now(), time.UTC), "")
}

// plainSpaces writes the spaces at which no line breaks as others, narrow ones as "_".
func plainSpaces(text string) string {
	return strings.NewReplacer(wideSpace, " ", narrowSpace, "_").Replace(text)
}

// TestLanguage_saysUntilWhenAsPeopleDo: the same local day needs no date, and the same year no year.
func TestLanguage_saysUntilWhenAsPeopleDo(t *testing.T) {
	t.Parallel()
	zurich := shownZone("Europe/Zurich")
	now := time.Date(2026, 12, 30, 22, 58, 0, 0, time.UTC) // 23:58 there
	for lang, want := range map[pageLanguage]string{
		"en": "until 23:59|until 31 December, 00:05|until 1 January 2027, 09:00",
		"de": "bis 23:59 Uhr|bis 31. Dezember, 00:05 Uhr|bis 1. Januar 2027, 09:00 Uhr",
		"fr": "jusqu’à 23 h 59|jusqu’au 31 décembre à 0 h 05|jusqu’au 1er janvier 2027 à 9 h 00",
		"it": "fino alle 23:59|fino al giorno 31 dicembre, ore 00:05|fino al giorno 1º gennaio 2027, ore 09:00",
		"nb": "innen kl. 23:59|innen 31. desember kl. 00:05|innen 1. januar 2027 kl. 09:00",
		"sv": "senast kl. 23:59|senast 31 december kl. 00:05|senast 1 januari 2027 kl. 09:00",
		"da": "inden kl. 23.59|inden 31. december kl. 00.05|inden 1. januar 2027 kl. 09.00",
		"fi": "klo 23.59 mennessä|31. joulukuuta klo 0.05 mennessä|1. tammikuuta 2027 klo 9.00 mennessä",
	} {
		var got []string
		for _, later := range []time.Duration{time.Minute, 7 * time.Minute, 33*time.Hour + 2*time.Minute} {
			got = append(got, lang.until(newStamp(now.Add(later)), now, zurich))
		}
		equal(t, string(lang), plainSpaces(strings.Join(got, "|")), want)
	}
}

// verbs are those of fmt.
var verbs = regexp.MustCompile(`%[^ ]`)

// TestPages_haveEveryTextInEveryLanguage holds the files of texts against each other: every language has each text,
// with the verbs of the English one, and nothing else. A Swiss one has only what differs. The pages for owners are in
// fewer languages.
func TestPages_haveEveryTextInEveryLanguage(t *testing.T) {
	t.Parallel()
	english := textsByLanguage["en"]()
	for i, lang := range slices.Concat(pageLanguages, swissLanguages) {
		name := "web/text_" + string(lang) + ".json"
		own := &pageTexts{}
		decoder := json.NewDecoder(strings.NewReader(embedded(name)))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(own); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := parseJSON([]byte(embedded(name))); err != nil { // no text twice
			t.Errorf("%s: %v", name, err)
		}
		all, spoken := textsByLanguage[lang](), textsByLanguage[lang.spoken()]()
		equal(t, "months in "+name, fmt.Sprint(len(all.Months), len(all.ShortMonths)), "12 12")
		sameTexts(t, name, all.Times, english.Times)
		sameTexts(t, name, all.Picture, english.Picture)
		sameTexts(t, name, all.Pay, english.Pay)
		if i < ownerLanguages {
			sameTexts(t, name, all.OAuth, english.OAuth)
			sameTexts(t, name, all.Books, english.Books)
			sameTexts(t, name, all.Activate, english.Activate)
			sameTexts(t, name, all.Scopes, english.Scopes)
		} else if len(own.OAuth)+len(own.Books)+len(own.Activate)+len(own.Scopes) > 0 {
			t.Errorf("%s has texts for owners", name)
		}
		if lang != lang.spoken() {
			for key, text := range own.Pay {
				if text == spoken.Pay[key] {
					t.Errorf("%s: %s is as in %s", name, key, lang.spoken())
				}
			}
			equal(t, "what else is in "+name, len(own.Months)+len(own.Times)+len(own.Picture), 0)
		}
	}
	equal(t, "scopes", strings.Join(slices.Sorted(maps.Keys(english.Scopes)), " "),
		strings.Join(slices.Sorted(slices.Values(appScopes)), " "))
	equal(t, "names of languages", len(languageNames), len(pageLanguages))
}

// sameTexts checks that texts have the keys of the English ones, with their verbs.
func sameTexts(t *testing.T, name string, texts, english map[string]string) {
	t.Helper()
	if got, want := slices.Sorted(maps.Keys(texts)), slices.Sorted(maps.Keys(english)); !slices.Equal(got, want) {
		t.Errorf("%s has the texts %v, want %v", name, got, want)
	}
	for key, text := range texts {
		want := verbs.FindAllString(english[key], -1)
		got := verbs.FindAllString(strings.ReplaceAll(text, wideSpace, " "), -1)
		if key == "clock" { // which some languages write as 9.05
			want, got = nil, nil
		}
		if strings.TrimSpace(text) == "" || !slices.Equal(got, want) {
			t.Errorf("%s in %s: %q", key, name, text)
		}
	}
}
