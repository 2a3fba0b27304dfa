/*-------------------------------------------------------------------------
 *
 * outcome.h
 *	  What has come of a definition, to be compared with what has at other replicas.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_OUTCOME_H
#define MIP_REPLICATION_OUTCOME_H

/* Which columns have values outside of rows, before it is executed; within SPI, as what follows */
extern Datum mip_missing_before(void);

/*
 * Behind it: checksums, by their kinds, of all definitions of replicated objects, and of the rows that have been
 * stored anew since. They are the same where a server of the same major version has the same.
 */
extern char *mip_outcome(Datum missing_before);

/*
 * Errors out (55000) where another outcome was expected, and says of what kinds. One of another
 * major version says nothing.
 */
extern void mip_check_outcome(const char *outcome, const char *expected);

#endif							/* MIP_REPLICATION_OUTCOME_H */
