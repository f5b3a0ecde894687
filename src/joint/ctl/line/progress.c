/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/ctl/line/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "joint/ctl/line/line.h"

#define PLACES 30
#define CLEAR  "\r\033[K"

bool ctl_progress_shown(void)
{
	static int is; /* 0: not determined yet. */
	if (is == 0)
		is = ctl_is_terminal(STDERR_FILENO) ? 1 : -1;
	return is > 0;
}

void ctl_progress(const char *fmt, ...)
{
	va_list ap;
	if (!ctl_progress_shown())
		return;
	(void)fputs(CLEAR, stderr);
	va_start(ap, fmt);
	(void)vfprintf(stderr, fmt, ap);
	va_end(ap);
}

void ctl_progress_end(void)
{
	if (ctl_progress_shown())
		(void)fputs(CLEAR, stderr);
}

struct ctl_bar ctl_bar(double part)
{
	struct ctl_bar b = {.text = "["};
	for (int i = 0; i < PLACES; i++)
		b.text[1 + i] = i < part * PLACES ? '#' : '.';
	b.text[1 + PLACES] = ']';
	return b;
}
