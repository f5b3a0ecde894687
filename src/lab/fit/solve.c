/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/fit/solve.h"

#include <math.h>

/* Put the lower triangle of Cholesky's factor of |a| into |l|. */
static bool factor_fill(double a[SOLVE_MOST][SOLVE_MOST], int n, double l[SOLVE_MOST][SOLVE_MOST])
{
	for (int i = 0; i < n; i++) {
		for (int j = 0; j <= i; j++) {
			double sum = a[i][j];
			for (int k = 0; k < j; k++)
				sum -= l[i][k] * l[j][k];
			if (i == j && !(sum > 0))
				return false;
			l[i][j] = i == j ? sqrt(sum) : sum / l[j][j];
		}
	}
	return true;
}

bool solve_invert(double a[SOLVE_MOST][SOLVE_MOST], int n, double out[SOLVE_MOST][SOLVE_MOST])
{
	double l[SOLVE_MOST][SOLVE_MOST] = {{0}};
	if (!factor_fill(a, n, l))
		return false;
	for (int c = 0; c < n; c++) {
		double y[SOLVE_MOST] = {0};
		for (int i = 0; i < n; i++) {
			double sum = i == c ? 1 : 0;
			for (int k = 0; k < i; k++)
				sum -= l[i][k] * y[k];
			y[i] = sum / l[i][i];
		}
		for (int i = n - 1; i >= 0; i--) {
			double sum = y[i];
			for (int k = i + 1; k < n; k++)
				sum -= l[k][i] * out[k][c];
			out[i][c] = sum / l[i][i];
		}
	}
	return true;
}
