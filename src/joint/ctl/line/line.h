/* SPDX-License-Identifier: Apache-2.0 */
/* line: the command line of cgn-ctl, of which cgn-lab carries out the verbs of bench: verbs, flags, help, tables as text or
 * JSON, output. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"

#define CTL_MAX_WORDS 16
#define CTL_MAX_FLAGS 64

struct ctl_verb;

struct ctl_flag {
	const char *verb, *name, *meta, *fallback, *help;
};

/* The parsed command line of one verb. All strings are borrowed from argv. */
struct ctl_args {
	const struct ctl_verb *verb;
	const char *words[CTL_MAX_WORDS]; /* Positional arguments after the verb. */
	size_t n_words;
	struct {
		const struct ctl_flag *flag;
		const char *value;
	} given[CTL_MAX_FLAGS];
	size_t n_given;
	bool json, wide; /* -o json, -o wide */
};

struct ctl_verb {
	const char *path, *arguments, *summary, *examples;
	CGN_RC (*run)(const struct ctl_args *a,
		struct cgn_err *err); /* NULL: another program carries it out. */
};

struct ctl_program {
	const struct ctl_verb *verbs;
	size_t n_verbs;
	/* Run the other program with the whole command line; returns the exit status if it cannot be run. */
	int (*hand_over)(char **argv);
	/* Append the names that a verb of this program alone takes, for its help. May be NULL. */
	void (*help_more)(const struct ctl_verb *v, struct cgn_buf *out);
};

/* Find the verb, check its flags against the table, run the verb, and return the exit status. */
int ctl_main(const struct ctl_program *of, int argc, char **argv);

extern const struct ctl_flag ctl_flags[];
extern const size_t ctl_n_flags;
bool ctl_flag_fits(const struct ctl_flag *f, const struct ctl_verb *v);
bool ctl_takes_flag(const struct ctl_verb *v, const char *flag);

/* Return the last value of a flag, its default, or NULL. |name| must be a flag of the verb. */
const char *ctl_flag(const struct ctl_args *a, const char *name);
bool ctl_switch(const struct ctl_args *a, const char *name);
/* Return the |i|-th value of a repeatable flag; NULL beyond the last. */
const char *ctl_flag_nth(const struct ctl_args *a, const char *name, size_t i);
CGN_RC ctl_flag_u64(const struct ctl_args *a, const char *name, uint64_t min, uint64_t max, uint64_t *out,
	struct cgn_err *err);
/* Parse numbers separated by commas, at least one and at most |room|. */
CGN_RC ctl_flag_u64s(const struct ctl_args *a, const char *name, uint64_t min, uint64_t max, uint64_t *out,
	size_t room, size_t *n, struct cgn_err *err);
CGN_RC ctl_flag_duration(const struct ctl_args *a, const char *name, cgn_nsec *out, struct cgn_err *err);

/* Append help texts: the verbs, of |group| only unless that is NULL; or one verb. A group is the first of two words. */
void ctl_help_verbs(const struct ctl_program *of, const char *group, struct cgn_buf *out);
void ctl_help_verb(const struct ctl_program *of, const struct ctl_verb *v, struct cgn_buf *out);
bool ctl_in_group(const struct ctl_verb *v, const char *group);

#define CTL_LAB_VERSION \
	"CGN_CTL_VERSION" /* In the environment of cgn-lab: the version of the cgn-ctl that became it. */

/* A table: header cells, then rows. Printed as aligned columns, or as a JSON array of objects keyed by the
 * lower-case header. On a terminal, text that does not fit into its width is cut and ends with "…"; elsewhere
 * nothing is cut. Cells are foreign text: they are escaped when they are printed. */
#define CTL_MAX_COLUMNS 32
struct ctl_table {
	size_t columns, cells;
	const char *header[CTL_MAX_COLUMNS];
	struct cgn_buf text; /* The cells, each terminated by a NUL. */
	bool is_number[CTL_MAX_COLUMNS], is_wide[CTL_MAX_COLUMNS];
	bool heading; /* ctl_table_head runs: cells are left out. */
	bool wide;    /* Show the columns that ctl_table_wide_column added too. JSON always has them. */
};
void ctl_table_column(struct ctl_table *t, const char *header, bool is_number);
void ctl_table_wide_column(struct ctl_table *t, const char *header, bool is_number);
void ctl_table_cell(struct ctl_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Append a cell with the header of its column, which the first row adds, or ctl_table_head: text if the format begins with "%s",
 * else a number. No other column has the header of the first one. CTL_CELL_RIGHT: on the right, as a number, although the format
 * makes text; CTL_CELL_WIDE: only -o wide shows the column. */
#define CTL_CELL(t, header, ...)       CTL_PUT_(t, header, false, false, __VA_ARGS__)
#define CTL_CELL_RIGHT(t, header, ...) CTL_PUT_(t, header, true, false, __VA_ARGS__)
#define CTL_CELL_WIDE(t, header, ...)  CTL_PUT_(t, header, false, true, __VA_ARGS__)
#define CTL_PUT_(t, header, right, wide, ...)                                                         \
	do {                                                                                          \
		if (ctl_table_next((t), (header), (right) || ctl_is_number(__VA_ARGS__, ""), (wide))) \
			ctl_table_cell((t), __VA_ARGS__);                                             \
	} while (0)
#define ctl_is_number(fmt, ...) (strncmp((fmt), "%s", 2) != 0)
/* Go to the next cell, in a column of |header|. Returns false where ctl_table_head wants only the header. */
bool ctl_table_next(struct ctl_table *t, const char *header, bool is_number, bool is_wide);
/* A row: a CTL_CELL for each column. Where |t->heading| is true, |of| is NULL, and no cell is computed. */
typedef void ctl_row(struct ctl_table *t, const void *of);
/* Add the columns of |row|, for a table that may stay without rows. */
void ctl_table_head(struct ctl_table *t, ctl_row *row);
/* Prints the table and frees it. */
CGN_RC ctl_table_print(struct ctl_table *t, bool json, struct cgn_err *err);

/* Return text from elsewhere (a router, an engine, a store, a file) in a form that is safe on a terminal
 * (cgn_buf_shown). Every such text goes through here when it is written; table cells do by themselves. NULL: "".
 * The result is |z|, or lives until the program ends. */
const char *ctl_shown(const char *z);
/* Write |b| to stdout and free it. Control characters that JSON allows in strings are escaped as \u009b. */
CGN_RC ctl_print(struct cgn_buf *b, struct cgn_err *err);
/* The same for bytes that need not be text. */
CGN_RC ctl_print_bytes(struct cgn_buf *b, struct cgn_err *err);
bool ctl_is_terminal(int fd);
