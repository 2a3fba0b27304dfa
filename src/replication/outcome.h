/*-------------------------------------------------------------------------
 *
 * outcome.h
 *	  What has come of a definition, to be compared with what has at other replicas.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_OUTCOME_H
#define MIP_REPLICATION_OUTCOME_H

/* What there is before it is executed; within SPI, as what follows */
extern Datum mip_outcome_before(void);

/*
 * Behind it: checksums, by their kinds, of the definitions of replicated objects that are not the same as before, and of
 * the rows that have been stored anew. They are the same where a server of the same release comes to the same.
 */
extern char *mip_outcome(Datum before);

/*
 * Errors out (55000) where another outcome was expected, and says of what kinds. One of another
 * release, which may use other words, says nothing.
 */
extern void mip_check_outcome(const char *outcome, const char *expected);

#endif							/* MIP_REPLICATION_OUTCOME_H */
