//! Takes comments and literals out of Rust source, so that a rule about code meets only code: a
//! comment may say why there is no unbounded channel, and a test may hold the word in a string.
//!
//! It knows just enough of the language: nested block comments, strings with escapes, raw strings,
//! character literals, and that `'a` is a lifetime.

/// The same text with every character of comments, strings and character literals replaced by a
/// space, line ends excepted, so that lines keep their numbers.
pub(crate) fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        match end_of_hidden(&chars, at) {
            Some(end) => {
                let hidden = &chars[at..end];
                code.extend(hidden.iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                code.push(chars[at]);
                at += 1;
            }
        }
    }
    code
}

/// Where the comment or literal ends that begins here, if one does.
fn end_of_hidden(chars: &[char], at: usize) -> Option<usize> {
    let next = |offset: usize| chars.get(at + offset).copied();
    match (chars[at], next(1)) {
        ('/', Some('/')) => Some(find(chars, at, |c| c == '\n')),
        ('/', Some('*')) => Some(end_of_block_comment(chars, at)),
        ('"', _) => Some(end_of_quoted(chars, at + 1, '"')),
        ('\'', Some('\\')) => Some(end_of_quoted(chars, at + 1, '\'')),
        ('\'', Some(_)) if next(2) == Some('\'') => Some(at + 3),
        ('r', Some('"' | '#')) if !continues_a_word(chars, at) => end_of_raw(chars, at + 1),
        _ => None,
    }
}

/// Whether the `r` here belongs to a longer name. The `b` or `c` of `br"…"` does not count.
fn continues_a_word(chars: &[char], at: usize) -> bool {
    let word = |index: Option<usize>| {
        index
            .and_then(|index| chars.get(index))
            .is_some_and(|c| c.is_alphanumeric() || *c == '_')
    };
    match at.checked_sub(1).map(|before| chars[before]) {
        Some('b' | 'c') => word(at.checked_sub(2)),
        _ => word(at.checked_sub(1)),
    }
}

fn find(chars: &[char], from: usize, stop: impl Fn(char) -> bool) -> usize {
    chars[from..]
        .iter()
        .position(|&c| stop(c))
        .map_or(chars.len(), |offset| from + offset)
}

fn end_of_block_comment(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut index = at;
    while index < chars.len() {
        match (chars[index], chars.get(index + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                index += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                index += 2;
                if depth == 0 {
                    return index;
                }
            }
            _ => index += 1,
        }
    }
    index
}

fn end_of_quoted(chars: &[char], from: usize, quote: char) -> usize {
    let mut index = from;
    while index < chars.len() {
        match chars[index] {
            '\\' => index += 2,
            c if c == quote => return index + 1,
            _ => index += 1,
        }
    }
    chars.len()
}

/// The end of a raw string whose hashes, if any, begin at `from`. `r#name` is none.
fn end_of_raw(chars: &[char], from: usize) -> Option<usize> {
    let quote = find(chars, from, |c| c != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - from;
    let mut index = quote + 1;
    loop {
        index = find(chars, index.min(chars.len()), |c| c == '"') + 1;
        if index > chars.len() {
            return Some(chars.len());
        }
        let end = index + hashes;
        if chars
            .get(index..end)
            .is_some_and(|after| after.iter().all(|&c| c == '#'))
        {
            return Some(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left, with runs of spaces made one.
    fn left(source: &str) -> String {
        let code = code_only(source);
        assert_eq!(
            code.matches('\n').count(),
            source.matches('\n').count(),
            "lines of {source}"
        );
        code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_go() {
        assert_eq!(left("a // b\nc /* d /* e */ f */ g"), "a c g");
        assert_eq!(left("//! page\n/// item\nfn f() {}"), "fn f() {}");
        assert_eq!(left("a /* never closed"), "a");
    }

    #[test]
    fn strings_go() {
        assert_eq!(left(r#"f("a \" // b", c)"#), "f( , c)");
        assert_eq!(
            left("f(r#\"a \" b\"#, r\"c\\\", br##\"d\"# e\"##)"),
            "f( , , b )"
        );
        assert_eq!(left("\"never closed"), "");
        assert_eq!(left("r#\"never closed\""), "");
    }

    #[test]
    fn characters_go_and_lifetimes_stay() {
        assert_eq!(left(r"f('a', '\'', '\u{1F600}', '/')"), "f( , , , )");
        assert_eq!(
            left("fn f<'a>(x: &'a str, y: &'static str)"),
            "fn f<'a>(x: &'a str, y: &'static str)"
        );
    }

    #[test]
    fn names_that_look_like_raw_strings_stay() {
        assert_eq!(left("r#type + for_r \"x\""), "r#type + for_r");
    }
}
