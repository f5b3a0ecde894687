/* SPDX-License-Identifier: Apache-2.0 */
#include "base/core/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct code_row {
	const char *name, *text;
	int http, grpc, exit;
} code_rows[CGN_CODE_COUNT] = {
#define CODE(name, http, grpc, exit, text) {#name, text, http, grpc, exit},
#include "base/core/codes.def"
#undef CODE
};

static const struct code_row *code_row_of(enum cgn_code c)
{
	CGN_MUST((unsigned)c < CGN_CODE_COUNT);
	return &code_rows[c];
}

cgn_rc cgn_fail_at(struct cgn_err *err, const char *where, enum cgn_code code, const char *fmt, ...)
{
	if (err == NULL)
		return CGN_RC_OF(code);
	err->code = code;
	err->sys_errno = 0;
	err->where = where;
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(err->msg, sizeof err->msg, fmt, ap);
	va_end(ap);
	return CGN_RC_OF(code);
}

cgn_rc cgn_err_of(cgn_rc rc, const char *what, struct cgn_err *err)
{
	size_t n = what != NULL ? strlen(what) : 0, most = sizeof((struct cgn_err *)0)->msg - 1;
	if (rc.code == CGN_FINE || err == NULL || n == 0 || n + 2 > most)
		return rc;
	size_t said = strlen(err->msg), kept = said < most - n - 2 ? said : most - n - 2;
	memmove(err->msg + n + 2, err->msg, kept);
	err->msg[n + 2 + kept] = '\0';
	memcpy(err->msg, what, n);
	memcpy(err->msg + n, ": ", 2);
	return rc;
}

const char *cgn_code_name(enum cgn_code c)
{
	return code_row_of(c)->name;
}

const char *cgn_code_text(enum cgn_code c)
{
	return code_row_of(c)->text;
}

int cgn_code_http(enum cgn_code c)
{
	return code_row_of(c)->http;
}

int cgn_code_grpc(enum cgn_code c)
{
	return code_row_of(c)->grpc;
}

int cgn_code_exit(enum cgn_code c)
{
	return code_row_of(c)->exit;
}

enum cgn_code cgn_code_from_grpc(int status)
{
	static const enum cgn_code by_status[17] = {
		[0] = CGN_FINE,
		[1] = CGN_CANCELLED,
		[2] = CGN_INTERNAL,
		[3] = CGN_INVALID,
		[4] = CGN_DEADLINE,
		[5] = CGN_NOT_FOUND,
		[6] = CGN_CONFLICT,
		[7] = CGN_FORBIDDEN,
		[8] = CGN_OVERLOADED,
		[9] = CGN_INVALID,
		[10] = CGN_CONFLICT,
		[11] = CGN_TOO_LARGE,
		[12] = CGN_UNSUPPORTED,
		[13] = CGN_INTERNAL,
		[14] = CGN_UNAVAILABLE,
		[15] = CGN_INTERNAL,
		[16] = CGN_UNAUTHENTICATED,
	};
	return status >= 0 && status < (int)CGN_COUNT(by_status) ? by_status[status] : CGN_INTERNAL;
}

enum cgn_code cgn_code_from_errno(int e)
{
	switch (e) {
	case 0:
		return CGN_FINE;
	case ENOMEM:
		return CGN_NO_MEMORY;
	case EADDRINUSE:
		return CGN_ADDRESS_IN_USE;
	case ENOENT:
		return CGN_NOT_FOUND;
	case EEXIST:
		return CGN_CONFLICT;
	case EACCES:
	case EPERM:
		return CGN_FORBIDDEN;
	case ETIMEDOUT:
		return CGN_DEADLINE;
	case ENOSPC:
	case EIO:
	case EROFS:
	case EDQUOT:
		return CGN_STORAGE;
	default:
		return CGN_UNAVAILABLE;
	}
}

_Noreturn void cgn_must_failed(const char *what, const char *where)
{
	(void)fprintf(stderr, "fatal: %s: broken invariant: %s\n", where, what);
	abort();
}

_Noreturn void cgn_out_of_memory(size_t bytes, const char *where)
{
	(void)fprintf(stderr,
		"fatal: %s: out of memory: no %zu bytes; see the machine's memory and the limit of the unit or container\n",
		where, bytes);
	abort();
}
