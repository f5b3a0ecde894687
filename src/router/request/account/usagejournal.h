/* SPDX-License-Identifier: Apache-2.0 */
/* usagejournal: the rows of usage that are not in the day's file yet, in a file beside it: a router that is killed forgets
 * what came in the last JOURNAL_EVERY. A mark says which content of the day's file has the rows before it, so that no row
 * counts twice, whenever the router died. The file is not synced: a power cut may take what the page cache has. */
#pragma once
#include "base/core/buf.h"
#include "io/os/loop/loop.h"

#define JOURNAL_EVERY (10 * CGN_MSEC)
#define JOURNAL_MOST  ((size_t)32 << 20) /* Bytes of the file; what comes beyond is only in the day's file. */

struct usage_journal;
/* |path|: of the file; its folder may be missing. */
struct usage_journal *usage_journal_open(struct cgn_loop *l, const char *path);
/* Give |row| the rows of the file that no day's file has; |has| tells whether the content of a day's file has that digest. A
 * row begins with its hour. Call once, before rows are added. Returns false if there is no file. */
bool usage_journal_read(struct usage_journal *j, bool (*has)(void *arg, uint64_t day, uint64_t digest),
	void (*row)(void *arg, struct cgn_str line), void *arg);
/* Add a row, which ends with a line end. Any thread. */
void usage_journal_add(struct usage_journal *j, struct cgn_str row);
/* The rows of |day| until now are in |text|, which is going to be its file. |open|: usage_journal_saved follows. Any thread. */
void usage_journal_mark(struct usage_journal *j, uint64_t day, struct cgn_str text, bool open);
/* Write the lines that were added. On the loop. */
void usage_journal_flush(struct usage_journal *j);
/* The text of the last mark of the open day is on the disk: drop the lines before it. On the loop. */
void usage_journal_saved(struct usage_journal *j);
void usage_journal_close(struct usage_journal **take); /* NULL-safe. No other thread uses it any more. */
uint64_t usage_journal_digest(struct cgn_str text);
