/* SPDX-License-Identifier: Apache-2.0 */
/* book: accounts by name. Accounts are never removed one by one. */
#include <stdlib.h>
#include <string.h>

#include "base/table/table.h"
#include "policy/who/budget/budget_priv.h"

#define BOOK_TAG  0xb0d6e701U
#define LEAST_CAP 64

struct budget_book {
	uint32_t tag;
	struct budget_account *accounts;
	size_t n, cap;
	struct table table; /* Indices of |accounts|. */
	uint64_t uncounted, version;
};

struct budget_book *budget_book_new(void)
{
	struct budget_book *b = CGN_NEW(struct budget_book);
	b->tag = BOOK_TAG;
	return b;
}

void budget_book_free(struct budget_book **take)
{
	struct budget_book *b = CGN_TAKE_LIVE(take, BOOK_TAG);
	if (b == NULL)
		return;
	b->tag = 0;
	free(b->accounts);
	table_fini(&b->table);
	free(b);
}

size_t budget_book_count(const struct budget_book *b)
{
	CGN_LIVE(b, BOOK_TAG);
	return b->n;
}

uint64_t budget_book_uncounted(const struct budget_book *b)
{
	CGN_LIVE(b, BOOK_TAG);
	return b->uncounted;
}

uint64_t budget_book_version(const struct budget_book *b)
{
	CGN_LIVE(b, BOOK_TAG);
	return b->version;
}

const struct budget_account *budget_book_at(const struct budget_book *b, size_t i)
{
	return &b->accounts[i];
}

/* ---- the table ---- */

static uint64_t name_hash(struct cgn_str name)
{
	return mix_fnv1a(MIX_FNV1A, name.p, name.n);
}

static struct budget_account *account_find(const struct budget_book *b, struct cgn_str name)
{
	CGN_LIVE(b, BOOK_TAG);
	table_each (at, &b->table, name_hash(name))
		if (cgn_str_is(name, b->accounts[at.number].name))
			return &b->accounts[at.number];
	return NULL;
}

const struct budget_account *budget_book_find(const struct budget_book *b, struct cgn_str name)
{
	return account_find(b, name);
}

static void book_grow(struct budget_book *b)
{
	b->cap = b->cap > 0 ? 2 * b->cap : LEAST_CAP;
	b->accounts = CGN_GROWN(b->accounts, b->cap);
}

struct budget_account *budget_book_make(struct budget_book *b, struct cgn_str name)
{
	struct budget_account *a = account_find(b, name);
	if (a != NULL)
		return a;
	if (name.n == 0 || name.n > BUDGET_NAME_MAX || b->n == BUDGET_ACCOUNTS)
		return NULL;
	if (b->n == b->cap)
		book_grow(b);
	table_put(&b->table, name_hash(name), (uint32_t)b->n);
	a = &b->accounts[b->n++];
	*a = (struct budget_account){0};
	(void)cgn_str_copyz(a->name, sizeof a->name, name);
	return a;
}

void budget_book_clear(struct budget_book *b)
{
	b->n = 0;
	table_clear(&b->table);
}

/* ---- spending ---- */

static uint64_t sum_of(uint64_t a, uint64_t b)
{
	return a < BUDGET_AMOUNT_MAX - (b < BUDGET_AMOUNT_MAX ? b : BUDGET_AMOUNT_MAX) ? a + b
										       : BUDGET_AMOUNT_MAX;
}

static void amounts_add(struct budget_amounts *to, const struct budget_amounts *more)
{
	for (int u = 0; u < BUDGET_UNITS; u++)
		to->v[u] = sum_of(to->v[u], more->v[u]);
}

static void spells_swap(struct budget_spell *a, struct budget_spell *b)
{
	struct budget_spell was = *a;
	*a = *b;
	*b = was;
}

/* Begin the window |number|, which is none of |v|, in the place of the earliest one. */
static void spell_begin(struct budget_spell *v, uint64_t number)
{
	struct budget_spell begun = {.number = number};
	unsigned earliest = 0;
	bool earlier = v[0].number != 0;
	for (unsigned i = 0; i < BUDGET_SPELLS; i++) {
		earlier = earlier && (v[i].number == 0 || number < v[i].number);
		earliest = v[i].number < v[earliest].number ? i : earliest;
	}
	if (earlier)
		begun.spent = v[0].spent;
	v[earliest] = v[0]; /* Nothing is moved when the current window is the earliest one. */
	v[0] = begun;
}

/* Return the window |number|; NULL: not known. */
static struct budget_spell *spell_find(struct budget_spell *v, uint64_t number)
{
	for (unsigned i = 0; i < BUDGET_SPELLS; i++)
		if (v[i].number == number)
			return &v[i];
	return NULL;
}

static void spells_turn(struct budget_spell *v, uint64_t number)
{
	struct budget_spell *known = spell_find(v, number);
	if (known != NULL)
		spells_swap(&v[0], known);
	else
		spell_begin(v, number);
}

void budget_turn(struct budget_account *a, uint64_t unix_s)
{
	for (int w = 0; w < BUDGET_WINDOWS; w++)
		spells_turn(a->spells[w], budget_window_at((enum budget_window)w, unix_s));
}

static bool answers_fill(const struct budget_account *a, const struct budget_set *s,
	const struct budget_amounts *want, struct budget_answer *answers)
{
	bool all = true;
	for (size_t i = 0; i < s->n; i++) {
		const struct budget *b = &s->v[i];
		const struct budget_spell *spell = &a->spells[b->window][0];
		uint64_t spent = spell->spent.v[b->unit], need = want->v[b->unit];
		bool granted = spent < b->limit && need <= b->limit - spent;
		answers[i] =
			(struct budget_answer){granted, spent, budget_window_end(b->window, spell->number)};
		all = all && granted;
	}
	for (size_t i = 0; i < s->n && all; i++)
		answers[i].spent += want->v[s->v[i].unit];
	return all;
}

bool budget_book_take(struct budget_book *b, struct cgn_str name, const struct budget_set *s, uint64_t unix_s,
	const struct budget_amounts *want, struct budget_answer *answers, struct budget_held *held)
{
	static const struct budget_account unknown;
	struct budget_account *a = budget_book_make(b, name), blank = unknown;
	*held = (struct budget_held){0};
	if (a == NULL) {
		b->uncounted++;
		budget_turn(&blank, unix_s);
		(void)answers_fill(&blank, s, want, answers);
		return true;
	}
	budget_turn(a, unix_s);
	if (!answers_fill(a, s, want, answers))
		return false;
	for (int w = 0; w < BUDGET_WINDOWS; w++) {
		amounts_add(&a->spells[w][0].spent, want);
		held->number[w] = a->spells[w][0].number;
	}
	held->amounts = *want;
	amounts_add(&a->held, want);
	b->version++;
	return true;
}

static void spell_settle(struct budget_spell *spell, const struct budget_amounts *held,
	const struct budget_amounts *used)
{
	for (int u = 0; u < BUDGET_UNITS; u++) {
		uint64_t spent = spell->spent.v[u];
		spent -= spent < held->v[u] ? spent : held->v[u];
		spell->spent.v[u] = sum_of(spent, used->v[u]);
	}
}

static void held_drop(struct budget_amounts *held, const struct budget_amounts *amounts)
{
	for (int u = 0; u < BUDGET_UNITS; u++)
		held->v[u] -= amounts->v[u] < held->v[u] ? amounts->v[u] : held->v[u];
}

void budget_book_settle(struct budget_book *b, struct cgn_str name, const struct budget_held *held,
	const struct budget_amounts *used)
{
	struct budget_account *a = account_find(b, name);
	if (a != NULL && held->number[BUDGET_DAY] != 0)
		held_drop(&a->held, &held->amounts);
	for (int w = 0; w < BUDGET_WINDOWS && a != NULL; w++) {
		struct budget_spell *spell =
			held->number[w] != 0 ? spell_find(a->spells[w], held->number[w]) : NULL;
		if (spell == NULL)
			continue;
		spell_settle(spell, &held->amounts, used);
		b->version++;
	}
}

void budget_book_spend(struct budget_book *b, struct cgn_str name, uint64_t unix_s,
	const struct budget_amounts *used)
{
	struct budget_account *a = budget_book_make(b, name);
	for (int w = 0; w < BUDGET_WINDOWS && a != NULL; w++) {
		uint64_t number = budget_window_at((enum budget_window)w, unix_s);
		if (number > a->spells[w][0].number)
			spells_turn(a->spells[w], number);
		struct budget_spell *known = spell_find(a->spells[w], number);
		if (known == NULL)
			continue;
		amounts_add(&known->spent, used);
		b->version++;
	}
}

void budget_book_learn(struct budget_book *b, struct cgn_str name, const struct budget *of, uint64_t number,
	uint64_t spent)
{
	struct budget_account *a = budget_book_make(b, name);
	if (a == NULL)
		return;
	struct budget_spell *v = a->spells[of->window];
	if (number > v[0].number)
		spells_turn(v, number);
	struct budget_spell *known = spell_find(v, number);
	if (known == NULL || known->spent.v[of->unit] == spent)
		return;
	known->spent.v[of->unit] = spent < BUDGET_AMOUNT_MAX ? spent : BUDGET_AMOUNT_MAX;
	b->version++;
}
