/* SPDX-License-Identifier: Apache-2.0 */
/* err: how everything fails. A result code for machines, one sentence for people. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/core/alloc.h"

enum cgn_code {
#define CODE(name, http, grpc, exit, text) CGN_##name,
#include "base/core/codes.def"
#undef CODE
	CGN_CODE_COUNT
};

/* A result that cannot be ignored and does not convert to an int. */
typedef struct cgn_rc {
	enum cgn_code code;
} cgn_rc;
#define CGN_RC       __attribute__((warn_unused_result)) cgn_rc
#define CGN_OK       ((cgn_rc){CGN_FINE})
#define CGN_RC_OF(c) ((cgn_rc){(c)})

/* The first failure: code, errno (0: none), source line, and one sentence with the offending value. Fixed
 * size, no allocation; a longer sentence is cut. */
struct cgn_err {
	enum cgn_code code;
	int sys_errno;
	const char *where;
	char msg[400];
};

/* Fill |err| (NULL-safe) and return |code| as a result. */
cgn_rc cgn_fail_at(struct cgn_err *err, const char *where, enum cgn_code code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
#define CGN_FAIL(err, code, ...) cgn_fail_at((err), CGN_HERE, CGN_##code, __VA_ARGS__)
/* As CGN_FAIL, with the code in a variable. */
#define CGN_FAIL_AS(err, code, ...) cgn_fail_at((err), CGN_HERE, (code), __VA_ARGS__)
/* Put the subject |what| before the sentence of |err| (NULL-safe): "kv.listen: cannot ...". Returns |rc|.
 * Does nothing when |rc| is fine or |what| is NULL. */
cgn_rc cgn_err_of(cgn_rc rc, const char *what, struct cgn_err *err);
/* Return early when |call| did not succeed. The only macro that returns. */
#define CGN_TRY(call)                         \
	do {                                  \
		cgn_rc try_rc_ = (call);      \
		if (try_rc_.code != CGN_FINE) \
			return try_rc_;       \
	} while (0)

static inline bool cgn_ok(cgn_rc rc)
{
	return rc.code == CGN_FINE;
}

const char *cgn_code_name(enum cgn_code c); /* "NOT_FOUND" */
const char *cgn_code_text(enum cgn_code c);
int cgn_code_http(enum cgn_code c);
int cgn_code_grpc(enum cgn_code c);
int cgn_code_exit(enum cgn_code c);
enum cgn_code cgn_code_from_grpc(int grpc_status);
enum cgn_code cgn_code_from_errno(int e);

/* Abort when one of the program's own invariants is broken. Input from a peer must never reach these. */
_Noreturn void cgn_must_failed(const char *what, const char *where);
#define CGN_MUST(cond)                                    \
	do {                                              \
		if (__builtin_expect(!(cond), 0))         \
			cgn_must_failed(#cond, CGN_HERE); \
	} while (0)
/* Check the tag of an object, which is its first member `uint32_t tag`, at each public function. Destructors
 * zero it. */
#define CGN_LIVE(obj, want) CGN_MUST((obj) != NULL && (obj)->tag == (want))
/* Take a pointer out of |*from|, which is NULL afterwards: the first line of a destructor, and the last of a constructor. */
#define CGN_TAKE(from)                                \
	__extension__({                               \
		__typeof__(*(from)) taken_ = *(from); \
		*(from) = NULL;                       \
		taken_;                               \
	})
/* As CGN_TAKE. Abort unless the pointer is NULL or its object has the tag |want|. */
#define CGN_TAKE_LIVE(from, want)                                \
	__extension__({                                          \
		__typeof__(*(from)) live_ = CGN_TAKE(from);      \
		CGN_MUST(live_ == NULL || live_->tag == (want)); \
		live_;                                           \
	})

/* Cleanup by scope: CGN_ON_EXIT(foo_free) struct foo *f = NULL;  where foo_free takes struct foo **. */
#define CGN_ON_EXIT(fn)                  __attribute__((cleanup(fn)))
#define CGN_COUNT(array)                 (sizeof(array) / sizeof((array)[0]))
#define CGN_CONTAINER(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))
#define CGN_UNUSED                       __attribute__((unused))

/* Nanoseconds: a duration, or an instant of the monotonic clock. */
typedef uint64_t cgn_nsec;
#define CGN_USEC ((cgn_nsec)1000)
#define CGN_MSEC ((cgn_nsec)1000000)
#define CGN_SEC  ((cgn_nsec)1000000000)

/* Return the time from |then| to |now|; 0 if |then| is later. Another thread's instant may be later than this
 * loop's |now|, which is the start of its turn: a raw difference would wrap (scripts/check-times). */
static inline cgn_nsec cgn_since(cgn_nsec now, cgn_nsec then)
{
	return now > then ? now - then : 0;
}
