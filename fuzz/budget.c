/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz budget: a budget as text, and the file of spent amounts. A text that is taken is written and read
 * again without a change. The sum in the file's last line is made here, so that the lines are reached. */
#include "policy/who/budget/budget.h"
#include "base/seal/seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void budget_try(struct cgn_str text)
{
	struct budget_set s = {0}, again = {0};
	struct cgn_err err;
	char out[BUDGET_TEXT_MAX];
	if (!cgn_ok(budget_set_add(&s, text, &err)))
		return;
	budget_text(&s.v[0], out);
	CGN_MUST(cgn_ok(budget_set_add(&again, cgn_str_of(out), &err)));
	CGN_MUST(again.v[0].limit == s.v[0].limit && again.v[0].unit == s.v[0].unit);
}

static struct budget_book *book_read(struct cgn_str text)
{
	struct budget_book *b = budget_book_new();
	struct cgn_err err;
	if (!cgn_ok(budget_book_read(b, text, &err)))
		budget_book_free(&b);
	return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_buf text = {0}, again = {0};
	struct cgn_str raw = {(const char *)data, n};
	budget_try(raw);
	struct budget_book *b = book_read(raw);
	budget_book_free(&b);
	seal_begin(&text, "cognitora-budgets", 1);
	cgn_buf_str(&text, raw);
	seal_end(&text);
	b = book_read(cgn_buf_view(&text));
	if (b != NULL) {
		budget_book_write(b, &again);
		struct budget_book *same = book_read(cgn_buf_view(&again));
		CGN_MUST(same != NULL && budget_book_count(same) == budget_book_count(b));
		budget_book_free(&same);
	}
	budget_book_free(&b);
	cgn_buf_fini(&text);
	cgn_buf_fini(&again);
	return 0;
}
