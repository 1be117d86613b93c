//! Closed sets of words that are values of a label.

/// Declares an enum whose variants are all values of a label, each with its word: `ALL` has them in
/// order, `as_str` returns the word.
///
/// ```
/// telemetry::labels! {
///     /// How a reload ended.
///     pub enum Reload {
///         /// All is in effect.
///         Taken = "taken",
///         /// Nothing is.
///         Failed = "failed",
///     }
/// }
/// assert_eq!(Reload::ALL.map(Reload::as_str), ["taken", "failed"]);
/// assert_eq!(Reload::ALL.map(|reload| reload as usize), [0, 1]);
/// ```
#[macro_export]
macro_rules! labels {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every value, in order.
            #[allow(dead_code, reason = "not every set is listed")]
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Returns the word that logs and metrics use.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}
