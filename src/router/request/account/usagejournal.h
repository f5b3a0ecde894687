/* SPDX-License-Identifier: Apache-2.0 */
/* usagejournal: the rows of usage that are not in the day's file yet, or not in the file of budgets, in a file beside them: a
 * router that is killed forgets the requests that ended in the last JOURNAL_EVERY. A mark says which content of one of these
 * files has the rows before it, so that no row counts twice, whenever the router died. With it goes what requests under way
 * have used (usageopen.h). The files are not synced: a power cut may take what the page cache has. */
#pragma once
#include "base/core/buf.h"
#include "io/os/loop/loop.h"
#include "router/request/account/usageopen.h"

#define JOURNAL_EVERY CGN_MSEC
#define JOURNAL_MOST  ((size_t)32 << 20) /* Bytes of the file; rows beyond are only in the other files. */

struct usage_journal;
/* |path|: of the file; its folder may be missing. */
struct usage_journal *usage_journal_open(struct cgn_loop *l, const char *path);

/* A row that was read. */
struct usage_row {
	uint64_t unix_s;     /* The beginning of the minute in which it was added. */
	struct cgn_str text; /* Begins with its hour; without its line end. */
	bool for_day;        /* The file of its day does not have it. */
	bool for_budgets;    /* The file of budgets does not have it. */
};
struct usage_journal_reader {
	/* Has the file of |day| the content with |digest|? */
	bool (*has_day)(void *arg, uint64_t day, uint64_t digest);
	uint64_t budgets; /* Digest of the file of budgets; 0: there is none. */
	void (*row)(void *arg, const struct usage_row *row);
	void *arg;
};
/* Give |r| the rows that a file lacks, and one for each request that was under way, and keep them. Call once, before rows are
 * added. */
void usage_journal_read(struct usage_journal *j, const struct usage_journal_reader *r);

/* Add a row, which ends with a line end. |place|: of the request that ends with it, NULL: it has none. Any thread. */
void usage_journal_add(struct usage_journal *j, struct cgn_str row, struct usage_place *place);
/* The request of |place| would end with |row| if it ended now. Any thread. */
void usage_journal_put(struct usage_journal *j, struct cgn_str row, struct usage_place *place);
/* The request of |place| has ended without a row. Any thread. */
void usage_journal_drop(struct usage_journal *j, struct usage_place *place);
/* The rows of |day| until now are in |text|, which is going to be its file. |open|: usage_journal_saved follows. Any thread. */
void usage_journal_mark(struct usage_journal *j, uint64_t day, struct cgn_str text, bool open);
/* The rows until now are in the budgets' text with |digest|, which is going to be their file; |saved|: it is. */
void usage_journal_budgets(struct usage_journal *j, uint64_t digest, bool saved);
/* Write the lines that were added. On the loop. */
void usage_journal_flush(struct usage_journal *j);
/* The text of the last mark of the open day is on the disk: drop the lines that no file lacks. |last|: no row follows, so that
 * marks without a row are dropped too. On the loop. */
void usage_journal_saved(struct usage_journal *j, bool last);
void usage_journal_close(struct usage_journal **take); /* NULL-safe. No other thread uses it any more. */
uint64_t usage_journal_digest(struct cgn_str text);
