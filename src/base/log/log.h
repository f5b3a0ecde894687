/* SPDX-License-Identifier: Apache-2.0 */
/* log: an event token and typed fields, as JSON lines or in a form for people, on stderr with one write(2)
 * for each line. Any thread. Foreign strings are escaped. Keys, prompts and tokens are never logged. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_HUMAN, LOG_JSON };

struct log_field {
	const char *key;
	enum { LOG_F_STR, LOG_F_I64, LOG_F_U64, LOG_F_F64, LOG_F_BOOL, LOG_F_DUR } kind;
	union {
		struct cgn_str s;
		int64_t i;
		uint64_t u; /* A number, or a duration in nanoseconds, which is printed in milliseconds. */
		double f;
		bool b;
	};
};
#define F_STR(k, z)    ((struct log_field){.key = (k), .kind = LOG_F_STR, .s = cgn_str_of(z)})
#define F_STRN(k, str) ((struct log_field){.key = (k), .kind = LOG_F_STR, .s = (str)})
#define F_I64(k, v)    ((struct log_field){.key = (k), .kind = LOG_F_I64, .i = (v)})
#define F_U64(k, v)    ((struct log_field){.key = (k), .kind = LOG_F_U64, .u = (v)})
#define F_F64(k, v)    ((struct log_field){.key = (k), .kind = LOG_F_F64, .f = (v)})
#define F_BOOL(k, v)   ((struct log_field){.key = (k), .kind = LOG_F_BOOL, .b = (v)})
#define F_DUR(k, ns)   ((struct log_field){.key = (k), .kind = LOG_F_DUR, .u = (ns)})

void log_setup(const char *program, enum log_level min, enum log_format format);
/* Begin each line with its level as sd-daemon(3) says ("<6>"), which the journal takes off. Off at the start. */
void log_to_journal(bool on);
bool log_wants(enum log_level level);
void log_event(enum log_level level, const char *event, const struct log_field *fields, size_t n);
/* Append the line as JSON to |out|, whatever the level and the format of the log, for a log of its own. */
void log_line(struct cgn_buf *out, enum log_level level, const char *event, const struct log_field *fields,
	size_t n);
/* cgn_log(WARN, "agent.engine_exit", F_STR("model", m), F_I64("code", st)); at least one field */
#define cgn_log(level, event, ...)                                                            \
	do {                                                                                  \
		if (log_wants(LOG_##level)) {                                                 \
			const struct log_field log_fields_[] = {__VA_ARGS__};                 \
			log_event(LOG_##level, (event), log_fields_, CGN_COUNT(log_fields_)); \
		}                                                                             \
	} while (0)

/* ---- lines that others can multiply ---- */

/* A place that logs once for each node, model, request or message of a peer: such lines could fill a disk. Each place
 * writes its first LOG_LIMIT_LINES lines of each LOG_LIMIT_EVERY; the others are counted, and one line
 * log.left_out says how many. */
#define LOG_LIMIT_LINES 50U
#define LOG_LIMIT_EVERY (10 * CGN_SEC)
struct log_limit {
	_Atomic uint64_t since;       /* Begin of the period; 0: no line yet. */
	_Atomic uint32_t lines, left; /* Lines of the period, and of these the ones left out. */
	_Atomic bool listed;
	const char *event;
	struct log_limit *next;
};
/* Return true if the line is to be written. |l| is static. Any thread. */
bool log_limit_pass(struct log_limit *l, const char *event);
/* Write the numbers of lines that were left out in periods that are over. Call about once a second; any
 * thread. */
void log_limits_tell(void);
/* As cgn_log, for such a place. */
#define cgn_log_limited(level, event, ...)                                        \
	do {                                                                      \
		static struct log_limit log_limit_;                               \
		if (log_wants(LOG_##level) && log_limit_pass(&log_limit_, event)) \
			cgn_log(level, event, __VA_ARGS__);                       \
	} while (0)
