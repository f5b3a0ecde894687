/* SPDX-License-Identifier: Apache-2.0 */
/* text: the book as a file. A line has the name, and for each kind of window the number and the amounts of each
 * unit of BUDGET_SPELLS windows. */
#include "base/seal/seal.h"
#include "policy/who/budget/budget_priv.h"

#define TEXT_KIND   "cognitora-budgets"
#define TEXT_FORMAT 1

/* Write a window without the amounts |held|; NULL: with them. */
static void spell_write(const struct budget_spell *s, const struct budget_amounts *held, struct cgn_buf *out)
{
	cgn_buf_char(out, ' ');
	cgn_buf_u64(out, s->number);
	for (int u = 0; u < BUDGET_UNITS; u++) {
		uint64_t spent = s->spent.v[u], less = held != NULL ? held->v[u] : 0;
		cgn_buf_char(out, ' ');
		cgn_buf_u64(out, spent - (less < spent ? less : spent));
	}
}

static void account_write(const struct budget_account *a, struct cgn_buf *out)
{
	bool peer = a->name[0] == 'p'; /* The journal of usage does not name peers. */
	cgn_buf_putz(out, a->name);
	for (int w = 0; w < BUDGET_WINDOWS; w++)
		for (int i = 0; i < BUDGET_SPELLS; i++)
			spell_write(&a->spells[w][i], peer || i > 0 ? NULL : &a->held, out);
	cgn_buf_char(out, '\n');
}

void budget_book_write(const struct budget_book *b, struct cgn_buf *out)
{
	seal_begin(out, TEXT_KIND, TEXT_FORMAT);
	for (size_t i = 0; i < budget_book_count(b); i++)
		account_write(budget_book_at(b, i), out);
	seal_end(out);
}

static bool number_take(struct cgn_str *rest, uint64_t *out)
{
	return cgn_str_u64(cgn_str_split(rest, ' '), out) && *out <= BUDGET_AMOUNT_MAX;
}

static bool spell_read(struct cgn_str *rest, struct budget_spell *s)
{
	bool fine = number_take(rest, &s->number);
	for (int u = 0; u < BUDGET_UNITS && fine; u++)
		fine = number_take(rest, &s->spent.v[u]);
	return fine;
}

static bool name_is(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] > '~')
			return false;
	return s.n > 0 && s.n <= BUDGET_NAME_MAX;
}

static bool account_read(struct budget_book *b, struct cgn_str line)
{
	struct cgn_str name = cgn_str_split(&line, ' ');
	struct budget_account *a =
		name_is(name) && budget_book_find(b, name) == NULL ? budget_book_make(b, name) : NULL;
	for (int i = 0; i < BUDGET_WINDOWS * BUDGET_SPELLS && a != NULL; i++)
		if (!spell_read(&line, &a->spells[i / BUDGET_SPELLS][i % BUDGET_SPELLS]))
			return false;
	return a != NULL && line.n == 0;
}

CGN_RC budget_book_read(struct budget_book *b, struct cgn_str text, struct cgn_err *err)
{
	struct cgn_str lines;
	unsigned n = 1;
	CGN_MUST(budget_book_count(b) == 0);
	CGN_TRY(seal_open(text, TEXT_KIND, TEXT_FORMAT, &lines, err));
	while (lines.n > 0) {
		n++;
		if (account_read(b, cgn_str_split(&lines, '\n')))
			continue;
		budget_book_clear(b);
		return CGN_FAIL(err, INVALID, "it is damaged: line %u is not an account", n);
	}
	return CGN_OK;
}
