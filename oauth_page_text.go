package main

// oauthTexts are the texts of the pages on which people sign in and agree that applications act for their
// account, in the order of pageLanguages. "scope_" and a scope say what it allows, honestly: who reads it
// decides by it.
var oauthTexts = textTable{
	"title_signin": {"Sign in", "Anmelden", "Se connecter", "Accedi"},
	"signin_text": {
		"Type the code that you have got in your portal, or from who operates this service.",
		"Geben Sie den Code ein, den Sie in Ihrem Portal oder vom Betreiber dieses Dienstes bekommen haben.",
		"Saisissez le code que vous avez reçu dans votre portail ou de l’exploitant de ce service.",
		"Inserisci il codice che hai ricevuto nel tuo portale o dal gestore di questo servizio.",
	},
	"code": {"Code", "Code", "Code", "Codice"},
	"code_form": { // with hyphens at which no line breaks
		"12 letters and digits, such as 7K3M‑Q9XD‑2VTA. It works once, within 15 minutes.",
		"12 Buchstaben und Ziffern, zum Beispiel 7K3M‑Q9XD‑2VTA. Er gilt einmal, innert 15 Minuten.",
		"12 lettres et chiffres, par exemple 7K3M‑Q9XD‑2VTA. Il sert une fois, dans les 15 minutes.",
		"12 lettere e cifre, per esempio 7K3M‑Q9XD‑2VTA. Vale una volta, entro 15 minuti.",
	},
	"sign_in": {"Sign in", "Anmelden", "Se connecter", "Accedi"},
	"signin_hint": {
		"Nobody will ever ask you for this code by telephone or in a message. You stay signed in for 12 " +
			"hours.",
		"Niemand wird Sie je am Telefon oder in einer Nachricht nach diesem Code fragen. Sie bleiben 12 " +
			"Stunden " +
			"angemeldet.",
		"Personne ne vous demandera jamais ce code par téléphone ou par message. Vous restez connecté " +
			"pendant " +
			"12 heures.",
		"Nessuno ti chiederà mai questo codice al telefono o in un messaggio. Resti collegato per 12 ore.",
	},
	"wrong_code": {
		"This code is not right: it is mistyped, has expired or was used already. Please try again, or get " +
			"another one.",
		"Dieser Code stimmt nicht: Er ist vertippt, abgelaufen oder schon gebraucht. Bitte versuchen Sie " +
			"es noch " +
			"einmal oder holen Sie einen neuen.",
		"Ce code n’est pas correct : il est mal saisi, a expiré ou a déjà servi. Veuillez réessayer ou en " +
			"demander un autre.",
		"Questo codice non è corretto: è scritto male, è scaduto o è già stato usato. Riprova o richiedine " +
			"un " +
			"altro.",
	},
	"signed_in_for": {"Signed in for", "Angemeldet für", "Connecté pour", "Collegato per"},
	"sign_out":      {"Sign out", "Abmelden", "Se déconnecter", "Esci"},
	"not_you": {
		"Not %s? Sign out",
		"Nicht %s? Abmelden",
		"Ce n’est pas %s ? Se déconnecter",
		"Non è %s? Esci",
	},

	// The page that asks for consent.
	"title_consent": {
		"May %s act for your account?",
		"Darf %s für Ihr Konto handeln?",
		"%s peut-elle agir pour votre compte ?",
		"%s può agire per il tuo account?",
	},
	"who": {"Who asks", "Wer fragt", "Qui demande", "Chi lo chiede"},
	"account": {
		"Your account",
		"Ihr Konto",
		"Votre compte",
		"Il tuo account",
	},
	"app":       {"Application", "Anwendung", "Application", "Applicazione"},
	"owner":     {"Offered by", "Angeboten von", "Proposée par", "Offerta da"},
	"home_page": {"Home page", "Webseite", "Site web", "Sito web"},
	"goes":      {"Then you go to", "Danach gehen Sie zu", "Ensuite, vous allez à", "Poi vai a"},
	"goes_site": {"the site", "der Seite", "le site", "il sito"},
	"goes_device": {
		"an installed application on this device",
		"einer installierten Anwendung auf diesem Gerät",
		"une application installée sur cet appareil",
		"un’applicazione installata su questo dispositivo",
	},
	"goes_scheme": {
		"an installed application on this device that opens links of the kind",
		"einer installierten Anwendung auf diesem Gerät, die solche Links öffnet:",
		"une application installée sur cet appareil, qui ouvre les liens du type",
		"un’applicazione installata su questo dispositivo che apre i link del tipo",
	},
	"verified": {
		"Who operates this service knows the application.",
		"Der Betreiber dieses Dienstes kennt die Anwendung.",
		"L’exploitant de ce service connaît l’application.",
		"Il gestore di questo servizio conosce l’applicazione.",
	},
	"not_verified": {
		"Who operates this service does not vouch for the application. It is your own account’s.",
		"Der Betreiber dieses Dienstes bürgt nicht für die Anwendung. Sie gehört Ihrem eigenen Konto.",
		"L’exploitant de ce service ne se porte pas garant de l’application. Elle appartient à votre " +
			"propre compte.",
		"Il gestore di questo servizio non garantisce per l’applicazione. Appartiene al tuo stesso account.",
	},
	"may": {"It may:", "Sie darf:", "Elle peut :", "Può:"},
	"may_hint": {
		"Take out what it is not to do.",
		"Entfernen Sie, was sie nicht tun soll.",
		"Décochez ce qu’elle ne doit pas faire.",
		"Togli ciò che non deve fare.",
	},
	"lasts": {
		"It may do this also while you are not there, for up to a year, until you end it under Connected " +
			"applications.",
		"Sie darf das auch, wenn Sie nicht da sind, bis zu einem Jahr lang, bis Sie es unter Verbundene " +
			"Anwendungen beenden.",
		"Elle le peut aussi en votre absence, pendant un an au plus, jusqu’à ce que vous y mettiez fin " +
			"sous " +
			"Applications connectées.",
		"Può farlo anche quando non ci sei, per un anno al massimo, finché non lo termini in Applicazioni " +
			"collegate.",
	},
	"allow": {"Allow", "Erlauben", "Autoriser", "Consenti"},
	"deny":  {"Deny", "Ablehnen", "Refuser", "Rifiuta"},
	"changed": {
		"Something has changed since this page was shown, so nothing was allowed. Please read it again.",
		"Seit diese Seite gezeigt wurde, hat sich etwas geändert. Es wurde nichts erlaubt. Bitte lesen Sie " +
			"sie " +
			"noch einmal.",
		"Quelque chose a changé depuis l’affichage de cette page : rien n’a été autorisé. Veuillez la " +
			"relire.",
		"Qualcosa è cambiato da quando questa pagina è stata mostrata: non è stato consentito nulla. " +
			"Rileggila.",
	},

	"undecided": {
		"You have not decided yet, so nothing was allowed. Please press one of the two buttons below.",
		"Sie haben noch nicht entschieden, es wurde nichts erlaubt. Bitte drücken Sie einen der Knöpfe unten.",
		"Vous n’avez pas encore décidé : rien n’a été autorisé. Veuillez presser l’un des boutons en bas.",
		"Non hai ancora deciso: non è stato consentito nulla. Premi uno dei pulsanti in basso.",
	},

	// What each scope allows.
	"scope_" + scopeStats: {
		"Read how often your widgets were seen and used",
		"Lesen, wie oft Ihre Widgets gesehen und benutzt wurden",
		"Lire combien de fois vos widgets ont été vus et utilisés",
		"Leggere quante volte i tuoi widget sono stati visti e usati",
	},
	"scope_" + scopeLeads: {
		"Read what visitors have sent with the forms of your sites, with their e-mail addresses",
		"Lesen, was Besucher mit den Formularen Ihrer Seiten gesendet haben, mit ihren E-Mail-Adressen",
		"Lire ce que les visiteurs ont envoyé avec les formulaires de vos sites, avec leurs adresses e-mail",
		"Leggere ciò che i visitatori hanno inviato con i moduli dei tuoi siti, con i loro indirizzi e-mail",
	},
	"scope_" + scopeErase: {
		"Erase for good what visitors have sent with the forms of your sites",
		"Endgültig löschen, was Besucher mit den Formularen Ihrer Seiten gesendet haben",
		"Effacer définitivement ce que les visiteurs ont envoyé avec les formulaires de vos sites",
		"Cancellare per sempre ciò che i visitatori hanno inviato con i moduli dei tuoi siti",
	},
	"scope_" + scopeLicenses: {
		"Read your licences and which devices use them",
		"Ihre Lizenzen lesen, und welche Geräte sie benutzen",
		"Lire vos licences et quels appareils les utilisent",
		"Leggere le tue licenze e quali dispositivi le usano",
	},
	"scope_" + scopeDevices: {
		"Take licences away from devices, so that their programs stop working there",
		"Geräten ihre Lizenz wegnehmen, so dass die Programme dort nicht mehr laufen",
		"Retirer les licences d’appareils, dont les programmes s’arrêtent alors",
		"Togliere le licenze ai dispositivi, i cui programmi allora smettono di funzionare",
	},
	"scope_" + scopeEvents: {
		"Read everything that has happened in your account, and who did it",
		"Alles lesen, was in Ihrem Konto geschehen ist, und wer es getan hat",
		"Lire tout ce qui s’est passé dans votre compte, et qui l’a fait",
		"Leggere tutto ciò che è successo nel tuo account, e chi l’ha fatto",
	},
	"scope_" + scopeWebhooks: {
		"Have news of what it may read sent at once to addresses of the application’s choosing",
		"Was sie lesen darf, laufend an Adressen melden lassen, die die Anwendung bestimmt",
		"Faire signaler ce qu’elle peut lire, à mesure, à des adresses que l’application choisit",
		"Far segnalare man mano ciò che può leggere a indirizzi scelti dall’applicazione",
	},
	"scope_" + scopeOrders: {
		"Read your orders and payments, with your guests’ names, addresses and telephone numbers",
		"Ihre Bestellungen und Zahlungen lesen, mit Namen, Adressen und Telefonnummern Ihrer Gäste",
		"Lire vos commandes et vos paiements, avec les noms, adresses et numéros de téléphone de vos clients",
		"Leggere i tuoi ordini e pagamenti, con nomi, indirizzi e numeri di telefono dei tuoi clienti",
	},
	"scope_" + scopeSelling: {
		"Make, accept, reject and cancel orders, charge your guests, and pay money back to them; of the orders " +
			"that it changes it reads what was ordered, but not by whom",
		"Bestellungen anlegen, annehmen, ablehnen und stornieren, Ihre Gäste belasten und ihnen Geld " +
			"zurückzahlen; von Bestellungen, die sie ändert, liest sie, was bestellt wurde, aber nicht von wem",
		"Créer, accepter, refuser et annuler des commandes, débiter vos clients et les rembourser ; des " +
			"commandes qu’elle modifie, elle lit ce qui a été commandé, mais non par qui",
		"Creare, accettare, rifiutare e annullare ordini, addebitare i tuoi clienti e rimborsarli; degli ordini " +
			"che modifica legge che cosa è stato ordinato, ma non da chi",
	},
	"scope_" + scopeRevenue: {
		"Read what you have taken on each day",
		"Lesen, was Sie an jedem Tag eingenommen haben",
		"Lire ce que vous avez encaissé chaque jour",
		"Leggere quanto hai incassato ogni giorno",
	},
	"scope_" + scopeBooks: {
		"Write to your bookkeeping software: connect it once you have signed in, read its accounts and decide " +
			"what is booked where; if it may also read what you have taken, see, send and reverse entries of days",
		"In Ihre Buchhaltung schreiben: sie verbinden, sobald Sie sich angemeldet haben, ihre Konten lesen und " +
			"bestimmen, was wo gebucht wird; darf sie auch Ihre Einnahmen lesen, Buchungen von Tagen sehen, senden " +
			"und stornieren",
		"Écrire dans votre comptabilité : la connecter une fois que vous vous êtes identifié, lire ses comptes et " +
			"décider ce qui est passé où ; si elle peut aussi lire vos encaissements, voir, envoyer et extourner " +
			"les écritures de journées",
		"Scrivere nella tua contabilità: collegarla dopo che hai effettuato l’accesso, leggere i suoi conti e " +
			"decidere che cosa si registra dove; se può anche leggere i tuoi incassi, vedere, inviare e stornare " +
			"le registrazioni di giornate",
	},

	// The page of connected applications.
	"title_connected": {
		"Connected applications",
		"Verbundene Anwendungen",
		"Applications connectées",
		"Applicazioni collegate",
	},
	"connected_text": {
		"These applications may act for your account. What you end stops at once.",
		"Diese Anwendungen dürfen für Ihr Konto handeln. Was Sie beenden, hört sofort auf.",
		"Ces applications peuvent agir pour votre compte. Ce à quoi vous mettez fin cesse aussitôt.",
		"Queste applicazioni possono agire per il tuo account. Ciò che termini cessa subito.",
	},
	"connected_none": {
		"No application may act for your account.",
		"Keine Anwendung darf für Ihr Konto handeln.",
		"Aucune application ne peut agir pour votre compte.",
		"Nessuna applicazione può agire per il tuo account.",
	},
	"since": {"Since", "Seit", "Depuis", "Da"},
	"used":  {"Last used", "Zuletzt benutzt", "Dernière utilisation", "Ultimo uso"},
	"end":   {"End it", "Beenden", "Y mettre fin", "Termina"},
	"more":  {"Earlier ones", "Frühere", "Plus anciennes", "Precedenti"},

	// Pages of what can't be asked.
	"title_fault": {
		"This link is not right",
		"Dieser Link stimmt nicht",
		"Ce lien n’est pas correct",
		"Questo link non è corretto",
	},
	"text_fault": {
		"The application that sent you here has made a mistake. Nothing has happened. Please tell who " +
			"makes it:",
		"Die Anwendung, die Sie hierher geschickt hat, hat einen Fehler gemacht. Es ist nichts geschehen. " +
			"Bitte " +
			"sagen Sie es ihrem Hersteller:",
		"L’application qui vous a envoyé ici a fait une erreur. Il ne s’est rien passé. Veuillez le dire à " +
			"son " +
			"éditeur :",
		"L’applicazione che ti ha mandato qui ha fatto un errore. Non è successo nulla. Dillo a chi la " +
			"produce:",
	},
	"fault_client_missing": {
		"The parameter client_id is missing.",
		"Der Parameter client_id fehlt.",
		"Le paramètre client_id manque.",
		"Manca il parametro client_id.",
	},
	"fault_client_repeated": {
		"The parameter client_id is given twice.",
		"Der Parameter client_id ist zweimal da.",
		"Le paramètre client_id est donné deux fois.",
		"Il parametro client_id è dato due volte.",
	},
	"fault_client_unknown": {
		"There is no application with this client_id, or it was removed.",
		"Es gibt keine Anwendung mit dieser client_id, oder sie wurde entfernt.",
		"Il n’y a pas d’application avec ce client_id, ou elle a été supprimée.",
		"Non c’è nessuna applicazione con questo client_id, o è stata rimossa.",
	},
	"fault_redirect_missing": {
		"The parameter redirect_uri is missing.",
		"Der Parameter redirect_uri fehlt.",
		"Le paramètre redirect_uri manque.",
		"Manca il parametro redirect_uri.",
	},
	"fault_redirect_repeated": {
		"The parameter redirect_uri is given twice.",
		"Der Parameter redirect_uri ist zweimal da.",
		"Le paramètre redirect_uri est donné deux fois.",
		"Il parametro redirect_uri è dato due volte.",
	},
	"fault_redirect_unknown": {
		"The redirect_uri is not registered for this application. It is compared character by character.",
		"Die redirect_uri ist für diese Anwendung nicht registriert. Sie wird Zeichen für Zeichen " +
			"verglichen.",
		"Le redirect_uri n’est pas enregistré pour cette application. Il est comparé caractère par " +
			"caractère.",
		"Il redirect_uri non è registrato per questa applicazione. È confrontato carattere per carattere.",
	},
	"title_unverified": {
		"This application can’t be allowed",
		"Diese Anwendung kann nicht erlaubt werden",
		"Cette application ne peut pas être autorisée",
		"Questa applicazione non può essere autorizzata",
	},
	"text_unverified": {
		"Who operates this service does not vouch for it yet. Until then only the account that it belongs " +
			"to can " +
			"allow it. Nothing has happened, and the application was told nothing.",
		"Der Betreiber dieses Dienstes bürgt noch nicht für sie. Bis dahin kann sie nur das Konto " +
			"erlauben, dem " +
			"sie gehört. Es ist nichts geschehen, und die Anwendung hat nichts erfahren.",
		"L’exploitant de ce service ne s’en porte pas encore garant. D’ici là, seul le compte auquel elle " +
			"appartient peut l’autoriser. Il ne s’est rien passé et l’application n’a rien appris.",
		"Il gestore di questo servizio non garantisce ancora per essa. Fino ad allora può autorizzarla " +
			"solo " +
			"l’account a cui appartiene. Non è successo nulla e l’applicazione non ha saputo nulla.",
	},

	// Pages of refusals, by status.
	"title_403": {
		"This form came from elsewhere",
		"Dieses Formular kam von anderswo",
		"Ce formulaire vient d’ailleurs",
		"Questo modulo viene da altrove",
	},
	"text_403": {
		"Another site has sent it, so nothing was done. If it was you, please load the page here again and " +
			"use its " +
			"buttons.",
		"Eine andere Seite hat es gesendet, darum wurde nichts getan. Wenn Sie es waren, laden Sie die " +
			"Seite hier " +
			"neu und benutzen Sie ihre Knöpfe.",
		"Un autre site l’a envoyé : rien n’a été fait. Si c’était vous, rechargez la page ici et utilisez " +
			"ses " +
			"boutons.",
		"L’ha inviato un altro sito, quindi non è stato fatto nulla. Se eri tu, ricarica la pagina qui e " +
			"usa i " +
			"suoi pulsanti.",
	},
	"title_429": {"Too many requests", "Zu viele Anfragen", "Trop de requêtes", "Troppe richieste"},
	"text_429": {
		"Please wait a minute, then try again.",
		"Bitte warten Sie eine Minute und versuchen Sie es dann noch einmal.",
		"Veuillez patienter une minute, puis réessayer.",
		"Attendi un minuto, poi riprova.",
	},
	"title_4xx": {
		"This request is not right",
		"Diese Anfrage stimmt nicht",
		"Cette requête n’est pas correcte",
		"Questa richiesta non è corretta",
	},
	"text_4xx": {
		"Nothing has happened. Please go back, load the page again and use its buttons.",
		"Es ist nichts geschehen. Bitte gehen Sie zurück, laden Sie die Seite neu und benutzen Sie ihre " +
			"Knöpfe.",
		"Il ne s’est rien passé. Veuillez revenir en arrière, recharger la page et utiliser ses boutons.",
		"Non è successo nulla. Torna indietro, ricarica la pagina e usa i suoi pulsanti.",
	},
	"title_5xx": {
		"Something went wrong",
		"Etwas ist schiefgegangen",
		"Un problème est survenu",
		"Qualcosa è andato storto",
	},
	"text_5xx": {
		"Please try again in a moment.",
		"Bitte versuchen Sie es gleich noch einmal.",
		"Veuillez réessayer dans un instant.",
		"Riprova tra un momento.",
	},
	"fault": {
		"If you report this, name %s.",
		"Falls Sie das melden, nennen Sie %s.",
		"Si vous le signalez, indiquez %s.",
		"Se lo segnali, indica %s.",
	},
}
