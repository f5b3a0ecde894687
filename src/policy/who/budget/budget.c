/* SPDX-License-Identifier: Apache-2.0 */
/* budget: budgets as texts, and the windows of the calendar. */
#include "policy/who/budget/budget.h"

#include <string.h>
#include <time.h>

#define DECIMALS 9
/* In billionths: more than any limit in any unit. Larger products with a suffix would not fit in 128 bits. */
#define AMOUNT_TOO_LARGE ((budget_wide)2 * BUDGET_AMOUNT_MAX * BUDGET_MONEY_SCALE)
#define DAY_S            86400
#define JOULES_KWH       3600000
#define LAST_DAY_S       UINT64_C(253402300800) /* The end of the year 9999. */

static const char *const window_texts[BUDGET_WINDOWS] = {"minute", "day", "month"};
static const char *const unit_texts[BUDGET_UNITS] = {"requests", "tokens", NULL, "joules"};
static const uint64_t unit_scales[BUDGET_UNITS] = {1, 1, BUDGET_MONEY_SCALE, BUDGET_JOULE_SCALE};

uint64_t budget_of_prices(budget_prices sum)
{
	const uint64_t parts = BUDGET_PRICE_SCALE / BUDGET_MONEY_SCALE;
	sum = (sum + parts - 1) / parts;
	return sum < BUDGET_AMOUNT_MAX ? (uint64_t)sum : BUDGET_AMOUNT_MAX;
}

const char *budget_window_text(enum budget_window w)
{
	return window_texts[w];
}

const char *budget_unit_text(const struct budget *b)
{
	return b->unit == BUDGET_MONEY ? b->currency : unit_texts[b->unit];
}

/* ---- reading ---- */

__extension__ typedef unsigned __int128 budget_wide;

static bool digit_is(struct cgn_str s)
{
	return s.n > 0 && s.p[0] >= '0' && s.p[0] <= '9';
}

static char str_shift(struct cgn_str *s)
{
	s->p++;
	s->n--;
	return s->p[-1];
}

/* Take a decimal number from |*rest|, as billionths; AMOUNT_TOO_LARGE for that much and more. False: there is none, or it
 * has too many digits. */
static bool amount_take(struct cgn_str *rest, budget_wide *out)
{
	budget_wide n = 0;
	unsigned decimals = 0;
	bool point = false;
	if (!digit_is(*rest))
		return false;
	for (; digit_is(*rest) || (!point && rest->n > 0 && *rest->p == '.');) {
		char c = str_shift(rest);
		if (c == '.') {
			point = true;
			continue;
		}
		n = n * 10 + (unsigned)(c - '0');
		decimals += point;
		if (n > (budget_wide)BUDGET_AMOUNT_MAX * BUDGET_MONEY_SCALE || decimals > DECIMALS)
			return false;
	}
	if (point && decimals == 0)
		return false;
	for (; decimals < DECIMALS; decimals++)
		n *= 10;
	*out = n < AMOUNT_TOO_LARGE ? n : AMOUNT_TOO_LARGE;
	return true;
}

static uint64_t suffix_take(struct cgn_str *rest)
{
	static const char letters[] = "kMG";
	const char *at = rest->n > 0 ? strchr(letters, *rest->p) : NULL;
	uint64_t factor = 1;
	if (at == NULL || *at == '\0' || cgn_str_starts(*rest, "kWh"))
		return 1;
	if (rest->n > 2 && rest->p[1] >= 'A' && rest->p[1] <= 'Z' && rest->p[2] >= 'A' && rest->p[2] <= 'Z' &&
		(rest->n == 3 || rest->p[3] == '/'))
		return 1; /* A currency, such as MXN or GBP. */
	(void)str_shift(rest);
	for (const char *p = letters; p <= at; p++)
		factor *= 1000;
	return factor;
}

static bool currency_is(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] < 'A' || s.p[i] > 'Z')
			return false;
	return s.n == BUDGET_CURRENCY - 1;
}

/* Set unit and currency of |b|, and |*scale| to how many of the unit's smallest parts one of |word| has. */
static bool unit_find(struct cgn_str word, struct budget *b, uint64_t *scale)
{
	for (int u = 0; u < BUDGET_UNITS; u++)
		if (unit_texts[u] != NULL && cgn_str_is(word, unit_texts[u])) {
			b->unit = (enum budget_unit)u;
			*scale = unit_scales[u];
			return true;
		}
	if (cgn_str_is(word, "kWh")) {
		b->unit = BUDGET_JOULES;
		*scale = JOULES_KWH * BUDGET_JOULE_SCALE;
		return true;
	}
	if (!currency_is(word))
		return false;
	b->unit = BUDGET_MONEY;
	*scale = BUDGET_MONEY_SCALE;
	return cgn_str_copyz(b->currency, sizeof b->currency, word);
}

static bool window_find(struct cgn_str word, enum budget_window *out)
{
	for (int w = 0; w < BUDGET_WINDOWS; w++)
		if (cgn_str_is(word, window_texts[w])) {
			*out = (enum budget_window)w;
			return true;
		}
	return false;
}

static cgn_rc budget_parse(struct cgn_str text, struct budget *b, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_trim(text);
	int shown = text.n < 60 ? (int)text.n : 60;
	budget_wide amount;
	uint64_t scale = 1;
	*b = (struct budget){0};
	if (!amount_take(&rest, &amount))
		return CGN_FAIL(err, INVALID,
			"the budget \"%.*s\" must begin with a number of at most 18 digits and 9 decimals",
			shown, text.p);
	rest = cgn_str_trim(rest);
	budget_wide factor = suffix_take(&rest);
	struct cgn_str window = cgn_str_trim(rest), unit = cgn_str_trim(cgn_str_split(&window, '/'));
	if (!unit_find(unit, b, &scale))
		return CGN_FAIL(err, INVALID,
			"the budget \"%.*s\" must be of requests, tokens, joules, kWh or three capitals of a currency",
			shown, text.p);
	if (!window_find(cgn_str_trim(window), &b->window))
		return CGN_FAIL(err, INVALID, "the budget \"%.*s\" must end with /minute, /day or /month",
			shown, text.p);
	/* At most 2e27 * 1e9, and 2e27 * 3.6e9 for kWh: no overflow. */
	budget_wide limit = amount * factor / BUDGET_MONEY_SCALE * scale +
		amount * factor % BUDGET_MONEY_SCALE * scale / BUDGET_MONEY_SCALE;
	if (limit < 1 || limit > BUDGET_AMOUNT_MAX)
		return CGN_FAIL(err, INVALID, "the budget \"%.*s\" is %s", shown, text.p,
			limit < 1 ? "less than the smallest amount" : "too large");
	b->limit = (uint64_t)limit;
	return CGN_OK;
}

const char *budget_set_currency(const struct budget_set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].unit == BUDGET_MONEY)
			return s->v[i].currency;
	return NULL;
}

CGN_RC budget_set_add(struct budget_set *s, struct cgn_str text, struct cgn_err *err)
{
	struct budget b;
	CGN_TRY(budget_parse(text, &b, err));
	const char *currency = budget_set_currency(s);
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].unit == b.unit && s->v[i].window == b.window)
			return CGN_FAIL(err, INVALID, "there are two budgets of %s a %s",
				budget_unit_text(&b), budget_window_text(b.window));
	if (b.unit == BUDGET_MONEY && currency != NULL && strcmp(currency, b.currency) != 0)
		return CGN_FAIL(err, INVALID, "there are budgets in two currencies, %s and %s", currency,
			b.currency);
	if (s->n == BUDGET_MAX)
		return CGN_FAIL(err, INVALID, "there are more than %d budgets", BUDGET_MAX);
	s->v[s->n++] = b;
	return CGN_OK;
}

/* ---- writing ---- */

void budget_amount_text(enum budget_unit unit, uint64_t amount, char out[BUDGET_TEXT_MAX])
{
	uint64_t scale = unit_scales[unit];
	int n = snprintf(out, BUDGET_TEXT_MAX, "%llu", (unsigned long long)(amount / scale));
	if (amount % scale == 0)
		return;
	int width = unit == BUDGET_MONEY ? DECIMALS : 3;
	n += snprintf(out + n, BUDGET_TEXT_MAX - (size_t)n, ".%0*llu", width,
		(unsigned long long)(amount % scale));
	while (out[n - 1] == '0')
		out[--n] = '\0';
}

void budget_text(const struct budget *b, char out[BUDGET_TEXT_MAX])
{
	char amount[BUDGET_TEXT_MAX];
	budget_amount_text(b->unit, b->limit, amount);
	(void)snprintf(out, BUDGET_TEXT_MAX, "%.40s %s/%s", amount, budget_unit_text(b),
		budget_window_text(b->window));
}

/* ---- windows ---- */

uint64_t budget_window_at(enum budget_window w, uint64_t unix_s)
{
	time_t at = (time_t)(unix_s < LAST_DAY_S ? unix_s : LAST_DAY_S - 1);
	struct tm tm;
	if (w == BUDGET_MINUTE)
		return (uint64_t)at / 60;
	if (w == BUDGET_DAY)
		return (uint64_t)at / DAY_S;
	CGN_MUST(gmtime_r(&at, &tm) != NULL);
	return (uint64_t)(tm.tm_year - 70) * 12 + (uint64_t)tm.tm_mon;
}

uint64_t budget_window_end(enum budget_window w, uint64_t number)
{
	struct tm tm = {.tm_mday = 1};
	if (w == BUDGET_MINUTE)
		return (number + 1) * 60;
	if (w == BUDGET_DAY)
		return (number + 1) * DAY_S;
	tm.tm_year = (int)((number + 1) / 12) + 70;
	tm.tm_mon = (int)((number + 1) % 12);
	return (uint64_t)timegm(&tm);
}
