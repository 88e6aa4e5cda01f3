package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The languages of the pages for guests, and how they write amounts, rates and times.

// A pageLanguage is the index of a language in pageLanguages and in each row of pageTexts.
type pageLanguage int

// pageLanguages are the languages of pages (BCP 47). The first is for who asks for none of them.
var pageLanguages = []string{"en", "de", "fr", "it"}

const (
	maxLanguages      = 20  // of an Accept-Language that are looked at
	maxLanguageHeader = 512 // bytes of it
)

// acceptedLanguage returns the language that the values of Accept-Language prefer (RFC 9110, section
// 12.5.4): of those with the highest weight the first. "de-CH" asks for de.
func acceptedLanguage(values []string) pageLanguage {
	header := strings.Join(values, ",")
	header = header[:min(len(header), maxLanguageHeader)]
	best, highest := pageLanguage(0), 0.0
	for _, each := range strings.SplitN(header, ",", maxLanguages+1)[:min(maxLanguages, strings.Count(header, ",")+1)] {
		name, weight, weighted := strings.Cut(each, ";")
		name, _, _ = strings.Cut(strings.ToLower(strings.TrimSpace(name)), "-")
		i, q := slices.Index(pageLanguages, name), 1.0
		if name == "*" {
			i = 0
		}
		if weighted {
			value, ok := strings.CutPrefix(strings.ReplaceAll(weight, " ", ""), "q=")
			n, err := strconv.ParseFloat(value, 64)
			if !ok || err != nil || !(n >= 0 && n <= 1) {
				continue
			}
			q = n
		}
		if i >= 0 && q > highest {
			best, highest = pageLanguage(i), q
		}
	}
	return best
}

// Lang returns the language's tag, for the template.
func (l pageLanguage) Lang() string { return pageLanguages[l] }

// T returns a text of pageTexts in the language, for the template. args fill in its verbs.
func (l pageLanguage) T(key string, args ...any) (string, error) {
	return l.textOf(pageTexts, key, args...)
}

// A textTable holds texts of pages by their keys, each in the order of pageLanguages.
type textTable map[string][4]string

// textOf is T for another table of texts.
func (l pageLanguage) textOf(texts textTable, key string, args ...any) (string, error) {
	row, ok := texts[key]
	if !ok {
		return "", fmt.Errorf("there is no text %s", key)
	}
	if len(args) == 0 {
		return row[l], nil
	}
	return fmt.Sprintf(row[l], args...), nil
}

// Spaces at which a line does not end.
const (
	wideSpace   = "\u00a0"
	narrowSpace = "\u202f"
)

// separators returns what the language writes between thousands and before decimals. Switzerland writes
// francs otherwise than its neighbours write euros, with a point.
func (l pageLanguage) separators(currency string) (thousands, point string) {
	switch lang := pageLanguages[l]; {
	case lang == "en":
		return ",", "."
	case lang == "fr" && currency == "CHF":
		return narrowSpace, "."
	case lang == "fr":
		return narrowSpace, ","
	case currency == "CHF":
		return "’", "."
	}
	return ".", ","
}

// money writes an amount as the language does: "CHF 1,234.50", "1.234,50 €". A negative one begins with a
// minus sign.
func (l pageLanguage) money(currency string, amount int64) string {
	sign := ""
	if amount < 0 {
		sign, amount = "−", -amount
	}
	thousands, point := l.separators(currency)
	digits := strconv.FormatInt(amount/100, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + thousands + digits[i:]
	}
	number := fmt.Sprintf("%s%s%02d", digits, point, amount%100)
	symbol, known := map[string]string{"EUR": "€", "GBP": "£"}[currency]
	if !known {
		symbol = currency
	}
	switch lang := pageLanguages[l]; {
	case lang == "en" && known:
		return sign + symbol + number
	case lang == "en", lang != "fr" && currency == "CHF":
		return sign + symbol + wideSpace + number
	}
	return sign + number + wideSpace + symbol
}

// rate writes a rate of VAT, in hundredths of a percent, as the language does: "8.1%", "8,1 %".
func (l pageLanguage) rate(currency string, rate int64) string {
	_, point := l.separators(currency)
	text := fmt.Sprintf("%d%s%02d", rate/100, point, rate%100)
	text = strings.TrimSuffix(strings.TrimRight(text, "0"), point)
	if pageLanguages[l] == "en" {
		return text + "%"
	}
	return text + wideSpace + "%"
}

// monthNames are the names of the months, by language.
var monthNames = [...][12]string{
	{"January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
		"November", "December"},
	{"Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober",
		"November", "Dezember"},
	{"janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre", "octobre",
		"novembre", "décembre"},
	{"gennaio", "febbraio", "marzo", "aprile", "maggio", "giugno", "luglio", "agosto", "settembre", "ottobre",
		"novembre", "dicembre"},
}

// moment writes a time in a zone: "22 November 2026, 14:05 CET"; "" if there is none.
func (l pageLanguage) moment(at stamp, zone *time.Location) string {
	if at.IsZero() {
		return ""
	}
	t := at.In(zone)
	day, month := strconv.Itoa(t.Day()), monthNames[l][t.Month()-1]
	switch lang := pageLanguages[l]; {
	case lang == "de":
		day += "."
	case lang == "fr" && t.Day() == 1:
		day = "1er"
	case lang == "it" && t.Day() == 1:
		day = "1º"
	}
	return fmt.Sprintf("%s %s %d, %s", day, month, t.Year(), t.Format("15:04 MST"))
}

// pageTexts are the texts of the pay page and the return page, in the order of pageLanguages.
var pageTexts = textTable{
	// What a page is about: its title and, after text_, what it says below that.
	"title_pay": {
		"Pay for your order",
		"Bestellung bezahlen",
		"Payer votre commande",
		"Paga il tuo ordine",
	},
	"text_until": {
		"You can pay until %s.",
		"Sie können bis %s bezahlen.",
		"Vous pouvez payer jusqu’au %s.",
		"Puoi pagare fino al %s.",
	},

	"title_unpaid": {"Not paid yet", "Noch nicht bezahlt", "Pas encore payé", "Non ancora pagato"},
	"text_unpaid": {
		"Nothing was paid for this order so far.",
		"Für diese Bestellung wurde bisher nichts bezahlt.",
		"Rien n’a été payé pour cette commande jusqu’à présent.",
		"Per questo ordine finora non è stato pagato nulla.",
	},
	"title_pending": {
		"Waiting for your payment",
		"Wir warten auf Ihre Zahlung",
		"En attente de votre paiement",
		"In attesa del tuo pagamento",
	},
	"text_pending": {
		"The payment provider has not confirmed the payment yet. This page looks again by itself every " +
			"few seconds.",
		"Der Zahlungsanbieter hat die Zahlung noch nicht bestätigt. Diese Seite sieht alle paar Sekunden " +
			"von selbst nach.",
		"Le prestataire de paiement n’a pas encore confirmé le paiement. Cette page vérifie d’elle-même " +
			"toutes les quelques secondes.",
		"Il fornitore del pagamento non l’ha ancora confermato. Questa pagina controlla da sola ogni " +
			"pochi secondi.",
	},
	"title_waiting": {
		"Not confirmed yet",
		"Noch nicht bestätigt",
		"Pas encore confirmé",
		"Non ancora confermato",
	},
	"text_waiting": {
		"The payment provider has not told yet what came of the payment. Please look again later.",
		"Der Zahlungsanbieter hat noch nicht gemeldet, was aus der Zahlung wurde. Bitte sehen Sie später " +
			"wieder nach.",
		"Le prestataire de paiement n’a pas encore indiqué l’issue du paiement. Veuillez revenir plus " +
			"tard.",
		"Il fornitore del pagamento non ha ancora comunicato l’esito. Ricontrolla più tardi.",
	},
	"title_declined": {
		"The payment was declined",
		"Die Zahlung wurde abgelehnt",
		"Le paiement a été refusé",
		"Il pagamento è stato rifiutato",
	},
	"text_declined": {
		"No money was taken. You can try again, also in another way.",
		"Es wurde nichts abgebucht. Sie können es noch einmal versuchen, auch auf andere Art.",
		"Rien n’a été débité. Vous pouvez réessayer, aussi par un autre moyen.",
		"Non è stato addebitato nulla. Puoi riprovare, anche in un altro modo.",
	},
	"title_left": {
		"You did not pay",
		"Sie haben nicht bezahlt",
		"Vous n’avez pas payé",
		"Non hai pagato",
	},
	"text_left": {
		"You went back before paying. No money was taken.",
		"Sie sind vor dem Bezahlen zurückgegangen. Es wurde nichts abgebucht.",
		"Vous êtes revenu en arrière avant de payer. Rien n’a été débité.",
		"Sei tornato indietro prima di pagare. Non è stato addebitato nulla.",
	},
	"title_lapsed": {
		"The payment took too long",
		"Die Zahlung hat zu lange gedauert",
		"Le paiement a pris trop de temps",
		"Il pagamento ha richiesto troppo tempo",
	},
	"text_lapsed": {
		"The time for it ran out. No money was taken.",
		"Die Zeit dafür ist abgelaufen. Es wurde nichts abgebucht.",
		"Le délai est écoulé. Rien n’a été débité.",
		"Il tempo è scaduto. Non è stato addebitato nulla.",
	},
	"title_review": {
		"Your payment is being checked",
		"Ihre Zahlung wird geprüft",
		"Votre paiement est en cours de vérification",
		"Il tuo pagamento è in fase di verifica",
	},
	"text_review": {
		"Please don’t pay again. Ask the restaurant what came of it.",
		"Bitte zahlen Sie nicht noch einmal. Fragen Sie das Restaurant, was daraus wurde.",
		"Veuillez ne pas payer une deuxième fois. Renseignez-vous auprès du restaurant.",
		"Non pagare di nuovo. Chiedi al ristorante a che punto è.",
	},
	"title_authorized": {
		"Your payment has arrived",
		"Ihre Zahlung ist angekommen",
		"Votre paiement est arrivé",
		"Il tuo pagamento è arrivato",
	},
	"text_authorized": {
		"The money is reserved. The restaurant will now look at your order; you are charged only if it " +
			"accepts.",
		"Der Betrag ist reserviert. Das Restaurant sieht jetzt Ihre Bestellung an; belastet wird er nur, " +
			"wenn es sie annimmt.",
		"Le montant est réservé. Le restaurant examine maintenant votre commande ; vous n’êtes débité " +
			"que s’il l’accepte.",
		"L’importo è riservato. Il ristorante ora esamina il tuo ordine; l’addebito avviene solo se lo " +
			"accetta.",
	},
	"title_accepted": {
		"Your order is accepted",
		"Ihre Bestellung ist angenommen",
		"Votre commande est acceptée",
		"Il tuo ordine è accettato",
	},
	"text_accepted": {
		"The restaurant has accepted your order. The money is reserved, and will be charged.",
		"Das Restaurant hat Ihre Bestellung angenommen. Der Betrag ist reserviert und wird noch belastet.",
		"Le restaurant a accepté votre commande. Le montant est réservé et sera débité.",
		"Il ristorante ha accettato il tuo ordine. L’importo è riservato e verrà addebitato.",
	},
	"title_paid": {"Paid. Thank you!", "Bezahlt. Vielen Dank!", "Payé. Merci !", "Pagato. Grazie!"},
	"text_paid": {
		"The restaurant has your order. Below is your receipt.",
		"Das Restaurant hat Ihre Bestellung. Unten steht Ihr Beleg.",
		"Le restaurant a votre commande. Votre reçu se trouve ci-dessous.",
		"Il ristorante ha il tuo ordine. Qui sotto c’è la ricevuta.",
	},
	"title_part_refunded": {
		"Partly refunded",
		"Teilweise zurückerstattet",
		"Remboursé en partie",
		"Rimborsato in parte",
	},
	"text_part_refunded": {
		"A part of what you paid is given back. It can take some days until you see it.",
		"Ein Teil Ihrer Zahlung wird zurückerstattet. Bis Sie das Geld sehen, kann es einige Tage dauern.",
		"Une partie de votre paiement vous est remboursée. Cela peut prendre quelques jours.",
		"Una parte di quanto hai pagato ti viene rimborsata. Possono volerci alcuni giorni.",
	},
	"title_refunded": {"Refunded", "Zurückerstattet", "Remboursé", "Rimborsato"},
	"text_refunded": {
		"All that you paid is given back. It can take some days until you see it.",
		"Ihre ganze Zahlung wird zurückerstattet. Bis Sie das Geld sehen, kann es einige Tage dauern.",
		"Tout ce que vous avez payé vous est remboursé. Cela peut prendre quelques jours.",
		"Tutto quanto hai pagato ti viene rimborsato. Possono volerci alcuni giorni.",
	},
	"title_cancelled": {
		"The order was cancelled",
		"Die Bestellung wurde storniert",
		"La commande a été annulée",
		"L’ordine è stato annullato",
	},
	"text_cancelled": {
		"You don’t pay anything. Money that was reserved is released; your bank may need some days for " +
			"that.",
		"Sie bezahlen nichts. Ein reservierter Betrag wird freigegeben; Ihre Bank kann dafür einige Tage " +
			"brauchen.",
		"Vous ne payez rien. Un montant réservé est libéré ; votre banque peut avoir besoin de quelques " +
			"jours.",
		"Non paghi nulla. L’importo riservato viene sbloccato; la tua banca può impiegare alcuni giorni.",
	},
	"title_expired": {
		"The order has expired",
		"Die Bestellung ist abgelaufen",
		"La commande a expiré",
		"L’ordine è scaduto",
	},
	"text_expired": {
		"It can’t be paid any more. Money that was reserved is released; your bank may need some days " +
			"for that.",
		"Sie kann nicht mehr bezahlt werden. Ein reservierter Betrag wird freigegeben; Ihre Bank kann " +
			"dafür einige Tage brauchen.",
		"Elle ne peut plus être payée. Un montant réservé est libéré ; votre banque peut avoir besoin de " +
			"quelques jours.",
		"Non può più essere pagato. L’importo riservato viene sbloccato; la tua banca può impiegare " +
			"alcuni giorni.",
	},

	// What is to be done.
	"pay_card": {"Pay %s by card", "%s mit Karte bezahlen", "Payer %s par carte", "Paga %s con carta"},
	"pay_mobile": {
		"Pay %s by phone (Vipps MobilePay)",
		"%s mit dem Telefon bezahlen (Vipps MobilePay)",
		"Payer %s par téléphone (Vipps MobilePay)",
		"Paga %s con il telefono (Vipps MobilePay)",
	},
	"try_again":  {"Go to payment", "Zur Bezahlung", "Aller au paiement", "Vai al pagamento"},
	"look_again": {"Look again", "Erneut nachsehen", "Vérifier à nouveau", "Controlla di nuovo"},
	"to_site": {
		"Back to the restaurant’s site",
		"Zurück zur Seite des Restaurants",
		"Retour au site du restaurant",
		"Torna al sito del ristorante",
	},
	"elsewhere": {
		"You pay on the page of the payment provider, and come back here.",
		"Sie bezahlen auf der Seite des Zahlungsanbieters und kommen hierher zurück.",
		"Vous payez sur la page du prestataire de paiement, puis vous revenez ici.",
		"Paghi sulla pagina del fornitore del pagamento e torni qui.",
	},
	"no_methods": {
		"This order can’t be paid online at the moment. Please ask the restaurant.",
		"Diese Bestellung kann im Moment nicht online bezahlt werden. Bitte fragen Sie das Restaurant.",
		"Cette commande ne peut pas être payée en ligne pour le moment. Adressez-vous au restaurant.",
		"Al momento questo ordine non può essere pagato online. Rivolgiti al ristorante.",
	},
	"too_often": {
		"You have tried to pay too often. Please ask the restaurant.",
		"Sie haben zu oft versucht zu bezahlen. Bitte fragen Sie das Restaurant.",
		"Vous avez essayé de payer trop souvent. Adressez-vous au restaurant.",
		"Hai provato a pagare troppe volte. Rivolgiti al ristorante.",
	},
	"busy": {
		"An earlier attempt to pay is just being closed. Please try again in a moment.",
		"Ein früherer Versuch wird gerade abgeschlossen. Bitte versuchen Sie es gleich noch einmal.",
		"Une tentative précédente est en train d’être close. Veuillez réessayer dans un instant.",
		"Un tentativo precedente sta per essere chiuso. Riprova tra un momento.",
	},
	"unreachable": {
		"The payment provider can’t be reached. No money was taken. Please try again in a moment.",
		"Der Zahlungsanbieter ist nicht erreichbar. Es wurde nichts abgebucht. Bitte versuchen Sie es " +
			"gleich noch einmal.",
		"Le prestataire de paiement est injoignable. Rien n’a été débité. Veuillez réessayer dans un " +
			"instant.",
		"Il fornitore del pagamento non è raggiungibile. Non è stato addebitato nulla. Riprova tra un " +
			"momento.",
	},
	"refused": {
		"This way of paying does not work at the moment. No money was taken.",
		"Diese Zahlungsart geht im Moment nicht. Es wurde nichts abgebucht.",
		"Ce moyen de paiement ne fonctionne pas pour le moment. Rien n’a été débité.",
		"Questo modo di pagare al momento non funziona. Non è stato addebitato nulla.",
	},

	// The order and its receipt.
	"order":         {"Your order", "Ihre Bestellung", "Votre commande", "Il tuo ordine"},
	"receipt":       {"Receipt", "Beleg", "Reçu", "Ricevuta"},
	"number":        {"Order", "Bestellung", "Commande", "Ordine"},
	"ordered_at":    {"Ordered", "Bestellt", "Commandé", "Ordinato"},
	"paid_at":       {"Paid", "Bezahlt", "Payé", "Pagato"},
	"paid_by":       {"Paid by", "Bezahlt mit", "Payé par", "Pagato con"},
	"vat_number":    {"VAT number", "MWST-Nummer", "Numéro de TVA", "Partita IVA"},
	"item":          {"Item", "Artikel", "Article", "Articolo"},
	"amount":        {"Amount", "Betrag", "Montant", "Importo"},
	"ordered":       {"ordered: %d", "bestellt: %d", "commandé : %d", "ordinati: %d"},
	"discount":      {"Discount", "Rabatt", "Remise", "Sconto"},
	"delivery":      {"Delivery", "Lieferung", "Livraison", "Consegna"},
	"tip":           {"Tip", "Trinkgeld", "Pourboire", "Mancia"},
	"total":         {"Total", "Total", "Total", "Totale"},
	"vat_in":        {"VAT included", "Enthaltene MWST", "TVA comprise", "IVA inclusa"},
	"rate":          {"Rate", "Satz", "Taux", "Aliquota"},
	"gross":         {"With VAT", "Inkl. MWST", "TVA comprise", "IVA inclusa"},
	"vat":           {"VAT", "MWST", "TVA", "IVA"},
	"refunds":       {"Refunds", "Rückerstattungen", "Remboursements", "Rimborsi"},
	"when":          {"When", "Wann", "Quand", "Quando"},
	"on_its_way":    {"on its way", "unterwegs", "en cours", "in corso"},
	"vat_of_refund": {"VAT %s: %s", "MWST %s: %s", "TVA %s : %s", "IVA %s: %s"},
	"remaining": {
		"Paid after refunds",
		"Bezahlt nach Rückerstattung",
		"Payé après remboursement",
		"Pagato dopo i rimborsi",
	},

	"method_card": {"card", "Karte", "carte", "carta"},
	"method_mobile": {
		"phone (Vipps MobilePay)",
		"Telefon (Vipps MobilePay)",
		"téléphone (Vipps MobilePay)",
		"telefono (Vipps MobilePay)",
	},
	"method_cash": {"cash", "Bargeld", "espèces", "contanti"},
	"method_terminal": {
		"card at the restaurant",
		"Karte im Restaurant",
		"carte au restaurant",
		"carta al ristorante",
	},
	"method_voucher": {"voucher", "Gutschein", "bon", "buono"},
	"method_other":   {"other means", "anderem Mittel", "autre moyen", "altro mezzo"},

	// Pages of refusals, by status.
	"title_404": {
		"There is no such order",
		"Diese Bestellung gibt es nicht",
		"Cette commande n’existe pas",
		"Questo ordine non esiste",
	},
	"text_404": {
		"The link is not complete, or not valid any more. Please open it again from where you got it.",
		"Der Link ist unvollständig oder nicht mehr gültig. Bitte öffnen Sie ihn noch einmal von dort, " +
			"wo Sie ihn bekommen haben.",
		"Le lien est incomplet ou n’est plus valable. Veuillez l’ouvrir à nouveau là où vous l’avez reçu.",
		"Il link è incompleto o non è più valido. Aprilo di nuovo da dove l’hai ricevuto.",
	},
	"title_429": {"Too many requests", "Zu viele Anfragen", "Trop de requêtes", "Troppe richieste"},
	"text_429": {
		"Please wait a moment, then load the page again.",
		"Bitte warten Sie einen Moment und laden Sie die Seite dann neu.",
		"Veuillez patienter un instant, puis recharger la page.",
		"Attendi un momento, poi ricarica la pagina.",
	},
	"title_4xx": {
		"This request is not right",
		"Diese Anfrage stimmt nicht",
		"Cette requête n’est pas correcte",
		"Questa richiesta non è corretta",
	},
	"text_4xx": {
		"Please go back, load the page again and use its buttons.",
		"Bitte gehen Sie zurück, laden Sie die Seite neu und benutzen Sie ihre Knöpfe.",
		"Veuillez revenir en arrière, recharger la page et utiliser ses boutons.",
		"Torna indietro, ricarica la pagina e usa i suoi pulsanti.",
	},
	"title_5xx": {
		"Something went wrong",
		"Etwas ist schiefgegangen",
		"Un problème est survenu",
		"Qualcosa è andato storto",
	},
	"text_5xx": {
		"Please load the page again in a moment, before you pay again.",
		"Bitte laden Sie die Seite gleich noch einmal, bevor Sie erneut bezahlen.",
		"Veuillez recharger la page dans un instant, avant de payer à nouveau.",
		"Ricarica la pagina tra un momento, prima di pagare di nuovo.",
	},
	"fault": {
		"If you report this, name %s.",
		"Falls Sie das melden, nennen Sie %s.",
		"Si vous le signalez, indiquez %s.",
		"Se lo segnali, indica %s.",
	},
}
