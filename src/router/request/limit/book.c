/* SPDX-License-Identifier: Apache-2.0 */
/* book: the spent amounts, under one lock that is held for a look-up and some additions, and its file. */
#include <pthread.h>
#include <stdlib.h>

#include "base/unlikely/unlikely.h"
#include "io/os/disk/disk.h"
#include "joint/cluster/statefile/statefile.h"
#include "router/request/account/usage.h"
#include "router/request/account/usagejournal.h"
#include "router/request/limit/budgets.h"

#define BUDGETS_TAG 0x64117503U
#define FILE_MAX    ((size_t)256 << 20)

struct gw_budgets {
	uint32_t tag;
	pthread_mutex_t lock;
	struct budget_book *book;
	struct statefile *file;
	uint64_t written;       /* Version of the book that was written last. */
	uint64_t digest;        /* The digest of its text; 0: there is none. */
	bool saving;            /* A write was begun, and its end was not seen. */
	struct gw_usage *usage; /* Borrowed; NULL: the router has none. */
};

static uint64_t wall_seconds(void)
{
	return cgn_clock_wall_ms() / 1000;
}

static void book_load(struct gw_budgets *b)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_err err;
	bool there = statefile_read(b->file, FILE_MAX, &text);
	if (there && !cgn_ok(budget_book_read(b->book, cgn_buf_view(&text), &err)))
		statefile_set_aside(b->file, err.msg);
	b->digest = there ? usage_journal_digest(cgn_buf_view(&text)) : 0;
	b->written = budget_book_version(b->book);
}

struct gw_budgets *gw_budgets_open(struct cgn_loop *l, const char *path)
{
	struct gw_budgets *b = CGN_NEW(struct gw_budgets);
	b->tag = BUDGETS_TAG;
	(void)pthread_mutex_init(&b->lock, NULL);
	b->book = budget_book_new();
	b->file = statefile_open(l, path, "budgets");
	book_load(b);
	return b;
}

/* Write the book to |out| if it has changed since it was written. */
static bool book_text(struct gw_budgets *b, struct cgn_buf *out)
{
	(void)pthread_mutex_lock(&b->lock);
	bool changed = budget_book_version(b->book) != b->written || unlikely_way(UNLIKELY_budgets_written);
	if (changed) {
		budget_book_write(b->book, out);
		b->digest = usage_journal_digest(cgn_buf_view(out));
	}
	b->written = budget_book_version(b->book);
	/* A request is settled before its row is in the journal, so each row before the mark is in the book. */
	if (b->usage != NULL && b->digest != 0)
		gw_usage_budgets_mark(b->usage, b->digest, !changed);
	(void)pthread_mutex_unlock(&b->lock);
	return changed;
}

/* Write the book if it has changed, or if the last write failed. */
static void book_write(struct gw_budgets *b)
{
	struct cgn_buf text = {.n = 0};
	if (b->saving && statefile_has_failed(b->file))
		b->written = UINT64_MAX;
	b->saving = book_text(b, &text);
	if (b->saving)
		statefile_write(b->file, &text);
}

uint64_t gw_budgets_tick(struct gw_budgets *b)
{
	CGN_LIVE(b, BUDGETS_TAG);
	if (!statefile_is_busy(b->file))
		book_write(b);
	(void)pthread_mutex_lock(&b->lock);
	uint64_t uncounted = budget_book_uncounted(b->book);
	(void)pthread_mutex_unlock(&b->lock);
	return uncounted;
}

/* Write the book, and tell the journal if the file has it. */
static void book_end(struct gw_budgets *b)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0}, there = {.n = 0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	cgn_buf_putz(&path, statefile_path(b->file));
	statefile_close(&b->file, book_text(b, &text) ? &text : NULL);
	if (b->usage != NULL && cgn_ok(disk_read_file(cgn_buf_z(&path), FILE_MAX, &there, NULL)) &&
		usage_journal_digest(cgn_buf_view(&there)) == b->digest)
		gw_usage_budgets_mark(b->usage, b->digest, true);
}

void gw_budgets_close(struct gw_budgets **take)
{
	struct gw_budgets *b = *take;
	*take = NULL;
	if (b == NULL)
		return;
	CGN_LIVE(b, BUDGETS_TAG);
	if (b->file != NULL)
		b->written = 0; /* A write in progress may not have been done. */
	if (b->file != NULL && budget_book_version(b->book) > 0)
		book_end(b);
	statefile_close(&b->file, NULL);
	budget_book_free(&b->book);
	(void)pthread_mutex_destroy(&b->lock);
	b->tag = 0;
	free(b);
}

uint64_t gw_budgets_digest(const struct gw_budgets *b)
{
	CGN_LIVE(b, BUDGETS_TAG);
	return b->digest;
}

void gw_budgets_journal(struct gw_budgets *b, struct gw_usage *usage)
{
	CGN_LIVE(b, BUDGETS_TAG);
	b->usage = usage;
}

static void name_spend(struct gw_budgets *b, char letter, struct cgn_str name, uint64_t unix_s,
	const struct budget_amounts *used)
{
	char account[BUDGET_NAME_MAX + 1];
	int n = snprintf(account, sizeof account, "%c:%.*s", letter, CGN_STR_ARG(name));
	if (n > 0 && (size_t)n < sizeof account)
		budget_book_spend(b->book, cgn_str_of(account), unix_s, used);
}

void gw_budgets_spend(void *arg, const struct billing_names *names, uint64_t unix_s,
	const struct billing_amounts *used)
{
	struct gw_budgets *b = arg;
	const struct budget_amounts amounts = {.v = {[BUDGET_REQUESTS] = used->requests,
						       [BUDGET_TOKENS] = used->input + used->output,
						       [BUDGET_MONEY] = used->money,
						       [BUDGET_JOULES] = used->joules}};
	CGN_LIVE(b, BUDGETS_TAG);
	name_spend(b, 't', names->tenant, unix_s, &amounts);
	name_spend(b, 'k', names->key, unix_s, &amounts);
}

bool gw_budgets_get(struct gw_budgets *b, struct cgn_str name, struct budget_account *out)
{
	CGN_LIVE(b, BUDGETS_TAG);
	(void)pthread_mutex_lock(&b->lock);
	const struct budget_account *a = budget_book_find(b->book, name);
	*out = a != NULL ? *a : (struct budget_account){0};
	(void)pthread_mutex_unlock(&b->lock);
	budget_turn(out, wall_seconds());
	return a != NULL;
}

bool gw_budgets_reserve(struct gw_budgets *b, struct cgn_str name, const struct budget_set *s,
	const struct budget_amounts *want, struct budget_answer *answers, struct budget_held *held)
{
	CGN_LIVE(b, BUDGETS_TAG);
	(void)pthread_mutex_lock(&b->lock);
	bool granted = budget_book_take(b->book, name, s, wall_seconds(), want, answers, held);
	(void)pthread_mutex_unlock(&b->lock);
	return granted;
}

void gw_budgets_return(struct gw_budgets *b, struct cgn_str name, const struct budget_held *held,
	const struct budget_amounts *used)
{
	CGN_LIVE(b, BUDGETS_TAG);
	(void)pthread_mutex_lock(&b->lock);
	budget_book_settle(b->book, name, held, used);
	(void)pthread_mutex_unlock(&b->lock);
}

void gw_budgets_learn(struct gw_budgets *b, struct cgn_str name, const struct budget *of, uint64_t number,
	uint64_t spent)
{
	CGN_LIVE(b, BUDGETS_TAG);
	(void)pthread_mutex_lock(&b->lock);
	budget_book_learn(b->book, name, of, number, spent);
	(void)pthread_mutex_unlock(&b->lock);
}
