package main

// The options of these commands.
var (
	optXeroURL = option{name: "xero-url", value: "URL",
		help: "base address of everything of Xero, for tests; by default Xero's own", hasVariable: true}
	optFortnoxURL = option{name: "fortnox-url", value: "URL",
		help: "base address of everything of Fortnox, for tests; by default Fortnox' own", hasVariable: true}
)
