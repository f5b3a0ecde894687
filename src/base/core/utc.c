/* SPDX-License-Identifier: Apache-2.0 */
#include "base/core/utc.h"

#include <time.h>

/* Callers name the format, which the header's attribute checks there. */
#pragma GCC diagnostic ignored "-Wformat-nonliteral"

bool cgn_utc_text(int64_t seconds, const char *format, char *out, size_t cap)
{
	time_t at = (time_t)seconds;
	struct tm tm;
	if (gmtime_r(&at, &tm) != NULL && strftime(out, cap, format, &tm) > 0)
		return true;
	out[0] = '\0';
	return false;
}
