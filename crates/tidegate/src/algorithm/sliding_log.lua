-- sliding-log, version 9: the twin of sliding_log.rs, and as there the sliding window with a grain of one microsecond. Its ring grows with
-- the hits in the window.

algorithms['sliding-log'] = algorithms['sliding-window']

-- Otherwise
